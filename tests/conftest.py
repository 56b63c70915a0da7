"""What tests of every room share."""

from __future__ import annotations

import signal
from collections.abc import Callable
from itertools import count, zip_longest
from pathlib import Path

import pytest

from tests.lab.nvml import fake

FakeNvml = Callable[..., dict[str, str]]


def pytest_configure() -> None:
    """Let the keyboard's signals reach what is tested: what a shell starts in its background ignores them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first, for begun last they would run alone: trainings and hosts in turns.

    Trainings compute and hosts mostly wait, so that one of each at a time shares the machine best.
    """
    train, lab = (
        list(dict.fromkeys(item.path for item in items if item.get_closest_marker(name)))
        for name in ("train", "lab")
    )
    lab = [path for path in lab if path not in train]
    order = [path for turn in zip_longest(train, lab) for path in turn if path is not None]
    place = {path: number for number, path in enumerate(order)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
