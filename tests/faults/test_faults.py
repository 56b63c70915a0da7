"""A few faults of the list, each of another kind; ``python -m tests.faults`` plays them all."""

from __future__ import annotations

import pytest

from tests.faults.fault import Fault, Owed
from tests.faults.faults import ALL, BY_NAME, SAMPLE
from tests.faults.launchers import PLATFORM_LAUNCH, TORCHRUN
from tests.faults.stage import Observed, play
from tests.faults.table import PAGE, load, page
from tests.lab.netns import requires_netns


@requires_netns
@pytest.mark.parametrize("name", SAMPLE)
def test_a_job_ends_as_it_should(name: str) -> None:
    fault = BY_NAME[name]
    seen = play(fault, PLATFORM_LAUNCH)
    assert seen.problems(fault) == [], seen.output


def test_each_fault_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(ALL)


def test_the_page_shows_what_was_seen_last() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(load())


def test_what_a_launcher_owes_is_judged_by_values() -> None:
    fault = Fault("one", "something", Owed.ENDS, node=1, code=3)
    good = Observed((3, 3), 2.0, (frozenset({1}), frozenset({1})), ())
    assert good.problems(fault) == []
    assert Observed((3, None), None, good.blamed, ()).problems(fault) == ["not ended after 90 s"]
    other = Observed((3, 1), 2.0, (frozenset({0}), frozenset({1})), ("process sleep on node0",))
    assert other.problems(fault) == [
        "left behind: process sleep on node0",
        "exit codes [3, 1] instead of 3",
        "told: node 0 blames node 0",
    ]


def test_an_adapter_reads_who_is_held_guilty() -> None:
    ours = (
        "12:00:01 [ERROR] node 1, gpu-1: the training ended with exit code 3 [node-failed node=1 exit_code=3]"
    )
    assert PLATFORM_LAUNCH.blamed(ours, 1) == {1}
    torchrun = "Root Cause (first observed failure):\n[0]:\n  time : now\n  rank      : 3 (local_rank: 1)"
    assert TORCHRUN.blamed(torchrun, 2) == {1}
