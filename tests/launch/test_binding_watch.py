"""Ranks that the hook has bound, seen from their launcher: real processes with real affinity masks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from platform_launch.events import Event
from platform_launch.launch.process_watch import BindingWatch, affinities
from platform_launch.observe import BIND_VARIABLE, HOOK
from tests.lab.waiting import until

CPUS = sorted(os.sched_getaffinity(0))
pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs to tell ranks apart")

WAITS = "import sys; print('ready', flush=True); sys.stdin.read()"
MOVES = f"import os; os.sched_setaffinity(0, {set(CPUS)}); {WAITS}"
# Its child is started without the variable, and keeps a mask of its own.
HAS_A_CHILD = """
import subprocess, sys
child = "import os; print(sorted(os.sched_getaffinity(0)), os.environ.get('PLATFORM_LAUNCH_BIND'))"
print(subprocess.check_output([sys.executable, "-c", child], text=True))
"""
Start = Callable[[int, str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a local rank with the hook before it, and wait until its script runs."""
    started: list[subprocess.Popen[str]] = []

    def rank(local_rank: int, script: str) -> subprocess.Popen[str]:
        variables = {BIND_VARIABLE: f"{CPUS[0]};{CPUS[1]}", "LOCAL_RANK": str(local_rank)}
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": str(HOOK), **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        if script is not HAS_A_CHILD:
            assert process.stdout.readline() == "ready\n"
        return process

    yield rank
    for process in started:
        process.kill()
        process.communicate()


class Heard:
    def __init__(self) -> None:
        self.told: list[Event] = []
        self.noted: list[Event] = []

    def watch(self, interval_s: float = 0.05) -> BindingWatch:
        ranks = ((CPUS[0],), (CPUS[1],))
        return BindingWatch(ranks, report=self.told.append, record=self.noted.append, interval_s=interval_s)


def test_each_rank_runs_on_its_own_cpus_and_is_silent(start: Start) -> None:
    start(0, WAITS), start(1, WAITS)
    assert affinities() == {0: {CPUS[0]}, 1: {CPUS[1]}}
    heard = Heard()
    with heard.watch():
        until(lambda: heard.noted)
    assert [one.id for one in heard.noted] == ["binding-verified"]
    assert heard.told == []


def test_a_script_that_undoes_it_is_reported_once(start: Start) -> None:
    start(0, WAITS), start(1, MOVES)
    heard = Heard()
    watch = heard.watch()
    assert not watch.check()  # a library may do so for a moment
    with watch:
        until(lambda: heard.told)
    [told] = heard.told
    assert (told.id, told.fields["local_rank"], told.fields["wanted"]) == ("binding-undone", 1, str(CPUS[1]))
    assert heard.noted == []


def test_children_inherit_the_mask_and_are_not_bound_again(start: Start) -> None:
    process = start(1, HAS_A_CHILD)
    assert process.stdout is not None
    assert process.stdout.readline() == f"[{CPUS[1]}] None\n"


def test_a_launcher_and_a_rank_that_has_no_cpus_listed_are_left_alone(start: Start) -> None:
    start(7, WAITS)
    assert affinities() == {7: set(CPUS)}
