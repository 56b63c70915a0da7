"""What tests of every room share."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

import pytest

from tests.lab.needs import needs_of
from tests.lab.nvml import fake

# Before torch is imported anywhere. Threads that wait for each other spin: where as many trainings as cores
# run side by side, two threads each cost five times the processor time of one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests read on screens what a launcher knows. test_quiet.py reads what others see.
os.environ.setdefault("PLATFORM_LAUNCH_VERBOSE", "1")
# Tests quote English; those of other languages choose one.
os.environ["LC_ALL"] = "C.UTF-8"
os.environ.pop("PLATFORM_LAUNCH_LANG", None)
# Images often ask Python to keep no bytecode. Tests start this package more than a thousand times, and each
# start would compile it anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Files that share what is made once per worker: a process that has imported torch, accelerate and DeepSpeed
# (lab/forking.py), what an interpreter knows of its torch (wheels/conftest.py), the answers to the corpus of
# `why`, and the syntax trees of the package (lab/syntax.py).
_TOGETHER = {
    "forking": (
        *("examples/test_ddp", "taehv/test_evaluate", "taehv/test_launch", "taehv/test_prepare"),
        "taehv/test_readme",
    ),
    "wheels": ("wheels/test_build", "wheels/test_install", "wheels/test_machine"),
    "corpus": ("test_docs", "why/test_notes", "why/test_recorded_logs"),
    "syntax": ("test_house", "console/test_languages"),
}
_GROUPS = {f"tests/{file}.py": group for group, files in _TOGETHER.items() for file in files}

FakeNvml = Callable[..., dict[str, str]]
# Tests that a run was asked to leave out, by what they need.
_LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Let a terminal's signals reach what is tested: a shell's background ignores two, nohup the third."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    config.stash[_LEFT_OUT] = Counter()


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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector off what is there for the whole run: modules and thousands of tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Kill what a failed test leaves running: Python would warn of it in a later test, which then fails."""
    started: list[weakref.ref[subprocess.Popen[Any]]] = []
    start = subprocess.Popen.__init__

    def recorded(self: subprocess.Popen[Any], *args: Any, **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        started.append(weakref.ref(self))

    subprocess.Popen.__init__ = recorded  # type: ignore[method-assign]
    try:
        return (yield)
    except BaseException:
        for process in filter(None, (reference() for reference in started)):
            process.kill()
            process.wait()
        raise
    finally:
        subprocess.Popen.__init__ = start  # type: ignore[method-assign]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first, for begun last they would run alone.

    Trainings compute, while hosts and most of what is marked long wait: one of each at a time shares a
    machine best.
    """
    train, long, lab = (
        dict.fromkeys(item.path for item in items if item.get_closest_marker(name))
        for name in ("train", "long", "lab")
    )
    waiting = [path for path in long | lab if path not in train]
    order = [path for turn in zip_longest(train, waiting) for path in turn if path is not None]
    place = {path: number for number, path in enumerate(order)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give each worker of ``--dist loadfile`` whole files, and some files together."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class FilesAndGroups(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return _GROUPS.get(file, file)

    return FilesAndGroups(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose host lacks something, before any fixture is made for it."""
    for need in needs_of(item):
        if reason := need.lacking():
            pytest.skip(reason)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Take note of what a run leaves out."""
    for item in items:
        without = item.config.getoption("markexpr")
        if "not nightly" in without and item.get_closest_marker("nightly"):
            item.config.stash[_LEFT_OUT]["much processor time (`make test-nightly`)"] += 1
        elif "not lab" in without:
            item.config.stash[_LEFT_OUT].update(
                {need.name for need in needs_of(item)} or {"a host of its own"}
            )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what was left out to the process that writes the summary: every worker left out the same."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        left_out = session.config.stash[_LEFT_OUT]
        output["left_out"] = dict(left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over what a worker of pytest-xdist left out."""
    node.config.stash[_LEFT_OUT] |= Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left out, and how to run it."""
    if left_out := config.stash[_LEFT_OUT]:
        terminalreporter.section("left out of this run: labs (`make test-labs`) and long ones")
        for name, number in left_out.most_common():
            terminalreporter.line(f"{number:>4} need {name}")
