from __future__ import annotations

from importlib.metadata import version

import pytest

from platform_launch.hardware import packages

INSTALLED = ("nvidia-ml-py", "psutil", "pytest", "PyYAML")


def test_versions_are_those_that_the_packages_themselves_say() -> None:
    assert packages.versions(INSTALLED) == {name: version(name) for name in INSTALLED}


@pytest.mark.parametrize("name", ["not-installed-here", "torc", ""])
def test_a_package_that_is_not_there_has_no_version(name: str) -> None:
    assert packages.versions([name]) == {}
