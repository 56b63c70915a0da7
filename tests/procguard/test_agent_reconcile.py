"""Every order against everything a worker can remember."""

from __future__ import annotations

from itertools import product

import pytest

from platform_launch.procguard.agent.reconcile import (
    NextAction,
    Stage,
    StartRefusal,
    WorkerRun,
    decide,
    report,
)
from platform_launch.procguard.api.wire import OrderAction, WorkerOrder, WorkerState
from platform_launch.sentences import sentence

# Generation 7 is ordered. What is known, and for each action: next step, state and generation reported.
N, E, W, C, S = NextAction.NOTHING, NextAction.END, NextAction.WITHDRAW, NextAction.CHECK, NextAction.START
TABLE: dict[tuple[int, Stage] | None, tuple[tuple[NextAction, WorkerState, int], ...]] = {
    #                     STOP 7                   PREPARE 7                RUN 7
    None: ((N, WorkerState.IDLE, 0), (C, WorkerState.IDLE, 0), (N, WorkerState.LOST, 7)),
    (6, Stage.READY): ((W, WorkerState.READY, 6), (C, WorkerState.READY, 6), (N, WorkerState.LOST, 7)),
    (6, Stage.STALE): ((W, WorkerState.IDLE, 6), (C, WorkerState.IDLE, 6), (N, WorkerState.LOST, 7)),
    (6, Stage.STARTING): (
        (E, WorkerState.RUNNING, 6),
        (E, WorkerState.RUNNING, 6),
        (E, WorkerState.RUNNING, 6),
    ),
    (6, Stage.RUNNING): (
        (E, WorkerState.RUNNING, 6),
        (E, WorkerState.RUNNING, 6),
        (E, WorkerState.RUNNING, 6),
    ),
    (6, Stage.EXITED): ((N, WorkerState.EXITED, 6), (C, WorkerState.EXITED, 6), (N, WorkerState.LOST, 7)),
    (6, Stage.LOST): ((N, WorkerState.LOST, 6), (C, WorkerState.LOST, 6), (N, WorkerState.LOST, 7)),
    (7, Stage.READY): ((W, WorkerState.READY, 7), (N, WorkerState.READY, 7), (S, WorkerState.READY, 7)),
    (7, Stage.STALE): ((W, WorkerState.IDLE, 7), (C, WorkerState.IDLE, 7), (N, WorkerState.LOST, 7)),
    (7, Stage.STARTING): (
        (E, WorkerState.RUNNING, 7),
        (N, WorkerState.RUNNING, 7),
        (N, WorkerState.RUNNING, 7),
    ),
    (7, Stage.RUNNING): (
        (E, WorkerState.RUNNING, 7),
        (N, WorkerState.RUNNING, 7),
        (N, WorkerState.RUNNING, 7),
    ),
    (7, Stage.EXITED): ((N, WorkerState.EXITED, 7), (N, WorkerState.EXITED, 7), (N, WorkerState.EXITED, 7)),
    (7, Stage.LOST): ((N, WorkerState.LOST, 7), (N, WorkerState.LOST, 7), (N, WorkerState.LOST, 7)),
    (8, Stage.READY): ((N, WorkerState.READY, 8), (N, WorkerState.READY, 8), (N, WorkerState.READY, 8)),
    (8, Stage.STALE): ((N, WorkerState.IDLE, 8), (N, WorkerState.IDLE, 8), (N, WorkerState.IDLE, 8)),
    (8, Stage.STARTING): (
        (N, WorkerState.RUNNING, 8),
        (N, WorkerState.RUNNING, 8),
        (N, WorkerState.RUNNING, 8),
    ),
    (8, Stage.RUNNING): (
        (N, WorkerState.RUNNING, 8),
        (N, WorkerState.RUNNING, 8),
        (N, WorkerState.RUNNING, 8),
    ),
    (8, Stage.EXITED): ((N, WorkerState.EXITED, 8), (N, WorkerState.EXITED, 8), (N, WorkerState.EXITED, 8)),
    (8, Stage.LOST): ((N, WorkerState.LOST, 8), (N, WorkerState.LOST, 8), (N, WorkerState.LOST, 8)),
}
ALIVE = (Stage.STARTING, Stage.RUNNING)


def run_of(known: tuple[int, Stage] | None) -> WorkerRun | None:
    return None if known is None else WorkerRun(*known)


def test_the_table_is_whole() -> None:
    assert set(TABLE) == {None, *product((6, 7, 8), Stage)}


@pytest.mark.parametrize("known", TABLE, ids=str)
def test_next_step_and_report(known: tuple[int, Stage] | None) -> None:
    run = run_of(known)
    for action, (step, state, generation) in zip(OrderAction, TABLE[known], strict=True):
        order = WorkerOrder(action=action, generation=7)
        assert decide(order, run) is step, action
        said = report(0, order, run)
        assert (said.state, said.generation) == (state, generation), action


@pytest.mark.parametrize("known", TABLE, ids=str)
def test_nothing_is_started_or_found_ready_beside_leftovers(known: tuple[int, Stage] | None) -> None:
    run = run_of(known)
    for action in OrderAction:
        order = WorkerOrder(action=action, generation=7)
        assert decide(order, run, leftovers=True) is not NextAction.CHECK
        said = report(0, order, run, leftovers=[41, 40])
        if run is None or not run.alive:
            assert (said.state, said.pid) == (WorkerState.STOPPING, 40)


@pytest.mark.parametrize("known", TABLE, ids=str)
def test_without_an_order_nothing_changes_and_leaving_ends_what_lives(
    known: tuple[int, Stage] | None,
) -> None:
    run = run_of(known)
    assert decide(None, run) is NextAction.NOTHING
    for order in (None, *(WorkerOrder(action=action, generation=7) for action in OrderAction)):
        expected = NextAction.END if run and run.stage in ALIVE else NextAction.NOTHING
        assert decide(order, run, leaving=True) is expected


def test_a_step_taken_is_not_asked_for_again() -> None:
    """What the steps lead to, asked again under the same order, asks for nothing."""
    prepare, run = (
        WorkerOrder(action=action, generation=7) for action in (OrderAction.PREPARE, OrderAction.RUN)
    )
    assert decide(prepare, WorkerRun(7, Stage.READY)) is NextAction.NOTHING  # after CHECK
    for stage in (Stage.STARTING, Stage.RUNNING, Stage.EXITED, Stage.LOST):  # after START
        assert decide(run, WorkerRun(7, stage)) is NextAction.NOTHING


def test_an_end_under_way_shows_in_the_report() -> None:
    said = report(2, None, WorkerRun(7, Stage.RUNNING, ending=True, pid=5, exit_code=3, ended_s_ago=1.5))
    assert (said.number, said.state, said.pid, said.exit_code) == (2, WorkerState.STOPPING, 5, 3)


def test_a_refusal_is_told_for_its_own_generation_only() -> None:
    refusal = StartRefusal(7, sentence("program-missing", file="train"))
    for generation, state in ((7, WorkerState.REFUSED), (6, WorkerState.IDLE), (8, WorkerState.IDLE)):
        order = WorkerOrder(action=OrderAction.PREPARE, generation=generation)
        assert report(0, order, None, refusal=refusal).state is state
    ready = WorkerRun(7, Stage.READY)  # the reason has gone away since
    assert (
        report(0, WorkerOrder(action=OrderAction.PREPARE, generation=7), ready, refusal=refusal).state
        is WorkerState.READY
    )
    assert (
        report(0, WorkerOrder(action=OrderAction.STOP, generation=7), None, refusal=refusal).state
        is WorkerState.IDLE
    )


def test_an_ended_run_is_told_whole() -> None:
    why = sentence("stopped-with-kills", reason=sentence("stopped-by-order"), count=2)
    ended = WorkerRun(
        7,
        Stage.EXITED,
        pid=5,
        exit_code=9,
        ended_s_ago=2.0,
        stop_requested=True,
        reason=why,
        verdict="v",
        log_bytes=4,
    )
    told = report(0, WorkerOrder(action=OrderAction.RUN, generation=7), ended)
    assert told.pid is None
    assert (told.exit_code, told.stop_requested, told.reason_sentence, told.verdict, told.log_bytes) == (
        9,
        True,
        why,
        "v",
        4,
    )
    assert told.reason == "stopped by the server's order; processes that had to be killed: 2"
