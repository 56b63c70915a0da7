from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from platform_launch.hardware import packages

INSTALLED = ("nvidia-ml-py", "psutil", "pytest", "PyYAML")


def test_versions_are_those_that_the_packages_themselves_say() -> None:
    assert packages.versions(INSTALLED) == {name: version(name) for name in INSTALLED}


@pytest.mark.parametrize("name", ["not-installed-here", "torc", ""])
def test_a_package_that_is_not_there_has_no_version(name: str) -> None:
    assert packages.versions([name]) == {}


def test_files_beside_a_script_hide_libraries_and_what_python_has_itself(tmp_path: Path) -> None:
    for name in ("torch.py", "random.py", "os.py", "time.py", "data.py", "queue/__init__.py", "json/a.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    hidden = packages.shadowing(tmp_path, ["torch", "accelerate"])
    assert hidden == {"torch.py", "random.py", "queue/__init__.py"}
