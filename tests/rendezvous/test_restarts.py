from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.observe.checkpoints import Checkpoint
from platform_launch.observe.steps import highest_step
from platform_launch.rendezvous.restarts import (
    FailedRun,
    NotAgain,
    NotAgainKind,
    describe_not_again,
    why_not_again,
)


def runs(*steps: int | None, duration_s: float = 30.0) -> list[FailedRun]:
    return [FailedRun(step, duration_s) for step in steps]


@pytest.mark.parametrize(
    ("log", "step"),
    [
        ("Step 1/100 | Loss\nStep 12/100 | Loss", 12),
        ("{'global_step': 5}\nglobal_step=70", 70),
        ("step: 3\nstep 9", 9),
        ("stepped back 3 times", None),
        ("", None),
    ],
)
def test_highest_step_in_a_log(log: str, step: int | None) -> None:
    assert highest_step(log) == step


def test_first_failure_is_restarted() -> None:
    assert why_not_again(runs(7), restarts_used=0, max_restarts=1) is None


def test_no_restart_without_max_restarts() -> None:
    assert why_not_again(runs(7), restarts_used=0, max_restarts=0) == NotAgain(NotAgainKind.NOT_ASKED_FOR)


def test_no_restart_when_all_are_used() -> None:
    assert why_not_again(runs(1, 2, 3), restarts_used=2, max_restarts=2) == NotAgain(NotAgainKind.USED_UP, 2)


def test_no_restart_after_two_without_progress() -> None:
    reason = why_not_again(runs(7, 7, 7), restarts_used=2, max_restarts=9)
    assert reason == NotAgain(NotAgainKind.NO_PROGRESS, 9, step=7)
    assert describe_not_again(reason).endswith("no progress: each ended at step 7 or before")


@pytest.mark.parametrize("steps", [(7, 8, 8), (7, 7, 8), (None, 3, 3)])
def test_restart_after_progress_in_either_of_the_last_two_runs(steps: tuple[int | None, ...]) -> None:
    assert why_not_again(runs(*steps), restarts_used=2, max_restarts=9) is None


def saving(*steps: int | None) -> list[FailedRun]:
    """Return runs that end at the same printed step, each with a checkpoint of its own."""
    return [FailedRun(7, 30.0, Checkpoint(Path("last.pt"), step)) for step in steps]


@pytest.mark.parametrize("steps", [(10, 20, 30), (10, 10, 20), (None, None, None)])
def test_newer_checkpoint_is_progress(steps: tuple[int | None, ...]) -> None:
    assert why_not_again(saving(*steps), restarts_used=2, max_restarts=9) is None


def test_same_checkpoint_written_again_is_no_progress() -> None:
    reason = why_not_again(saving(10, 10, 10), restarts_used=2, max_restarts=9)
    assert reason == NotAgain(NotAgainKind.NO_PROGRESS, 9, step=7)


def test_job_whose_output_names_no_steps_gets_all_its_restarts() -> None:
    """Unknown progress is not no progress."""
    for used in range(9):
        assert why_not_again(runs(*[None] * (used + 1)), restarts_used=used, max_restarts=9) is None
    assert why_not_again(runs(*[None] * 10), restarts_used=9, max_restarts=9) is not None


def test_runs_without_a_step_made_progress_only_if_they_were_long() -> None:
    assert why_not_again(runs(7, None, None), restarts_used=2, max_restarts=9) == NotAgain(
        NotAgainKind.NO_PROGRESS, 9
    )
    assert why_not_again(runs(7, None, None, duration_s=1200.0), restarts_used=2, max_restarts=9) is None


def test_replaced_node_0_counts_earlier_restarts() -> None:
    assert why_not_again(runs(7), restarts_used=3, max_restarts=3) == NotAgain(NotAgainKind.USED_UP, 3)
