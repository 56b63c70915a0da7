"""Every phase of a start on one node, with everything that may happen in it."""

from __future__ import annotations

import pytest

from platform_launch.launch.attempt import RUNS, Happening, Phase, after

MEETING, RUNNING, ALONE, LOST, ENDED, OVER = Phase

EXPECTED = {
    #          MET      WITHDREW ENDED  CLOSED   LOST     SETTLED
    MEETING: (RUNNING, OVER, MEETING, MEETING, MEETING, MEETING),
    RUNNING: (RUNNING, RUNNING, ENDED, ALONE, LOST, RUNNING),
    ALONE: (ALONE, ALONE, OVER, ALONE, ALONE, ALONE),
    LOST: (LOST, LOST, OVER, LOST, LOST, LOST),
    ENDED: (ENDED, ENDED, ENDED, OVER, OVER, OVER),
    OVER: (OVER, OVER, OVER, OVER, OVER, OVER),
}


@pytest.mark.parametrize("phase", Phase)
def test_what_follows(phase: Phase) -> None:
    assert tuple(after(phase, happening) for happening in Happening) == EXPECTED[phase]


def test_every_start_can_end_from_every_phase() -> None:
    """Whatever came before, the end of this node's processes and of the rendezvous lead to the end."""
    for phase in Phase:
        for happening in (Happening.WITHDREW, Happening.ENDED, Happening.LOST):
            phase = after(phase, happening)
        assert phase is OVER


def test_nothing_but_meeting_the_others_lets_processes_run() -> None:
    begins = {
        (phase, happening)
        for phase in Phase
        for happening in Happening
        if phase not in RUNS and after(phase, happening) in RUNS
    }
    assert begins == {(Phase.JOINING, Happening.JOINED)}
