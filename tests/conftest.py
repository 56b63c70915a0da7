"""What tests of every room share."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.lab.nvml import fake

FakeNvml = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a freshly built stand-in for libnvidia-ml.so.1."""
    if fake.COMPILER is None:
        pytest.skip("needs gcc to build a stand-in for the NVIDIA driver")
    return fake.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def fake_nvml(nvml_library: Path, tmp_path: Path) -> FakeNvml:
    """Variables for a child process in which the NVIDIA driver answers given lines (``*fake.h100s(8)``)."""
    numbers = count()

    def with_lines(*lines: str) -> dict[str, str]:
        return fake.environment(nvml_library, tmp_path / f"nvml-{next(numbers)}.txt", lines)

    return with_lines


@pytest.hookimpl(tryfirst=True)  # before xdist's own, which reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file on one worker; those of a folder whose lab has one name on this machine.

    Files with trainings and hosts come first: begun last, the longest would run alone at the end.
    """
    long = {item.path for item in items if item.get_closest_marker("train") or item.get_closest_marker("lab")}
    items.sort(key=lambda item: item.path not in long)
    for item in items:
        folder = item.path.parent
        shared = folder.name in ("slurm", "lab")
        item.add_marker(pytest.mark.xdist_group(str(folder if shared else item.path)))
