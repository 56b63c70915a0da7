"""Every order against everything a worker can remember."""

from __future__ import annotations

from itertools import product

import pytest

from platform_launch.procguard.agent.reconcile import Next, Refusal, Run, Stage, decide, report
from platform_launch.procguard.wire import Action, Order, State

# Generation 7 is ordered. What is known, and for each action: next step, state and generation reported.
N, E, W, C, S = Next.NOTHING, Next.END, Next.WITHDRAW, Next.CHECK, Next.START
TABLE: dict[tuple[int, Stage] | None, tuple[tuple[Next, State, int], ...]] = {
    #                     STOP 7                   PREPARE 7                RUN 7
    None: ((N, State.IDLE, 0), (C, State.IDLE, 0), (N, State.LOST, 7)),
    (6, Stage.READY): ((W, State.READY, 6), (C, State.READY, 6), (N, State.LOST, 7)),
    (6, Stage.STALE): ((W, State.IDLE, 6), (C, State.IDLE, 6), (N, State.LOST, 7)),
    (6, Stage.STARTING): ((E, State.RUNNING, 6), (E, State.RUNNING, 6), (E, State.RUNNING, 6)),
    (6, Stage.RUNNING): ((E, State.RUNNING, 6), (E, State.RUNNING, 6), (E, State.RUNNING, 6)),
    (6, Stage.EXITED): ((N, State.EXITED, 6), (C, State.EXITED, 6), (N, State.LOST, 7)),
    (6, Stage.LOST): ((N, State.LOST, 6), (C, State.LOST, 6), (N, State.LOST, 7)),
    (7, Stage.READY): ((W, State.READY, 7), (N, State.READY, 7), (S, State.READY, 7)),
    (7, Stage.STALE): ((W, State.IDLE, 7), (C, State.IDLE, 7), (N, State.LOST, 7)),
    (7, Stage.STARTING): ((E, State.RUNNING, 7), (N, State.RUNNING, 7), (N, State.RUNNING, 7)),
    (7, Stage.RUNNING): ((E, State.RUNNING, 7), (N, State.RUNNING, 7), (N, State.RUNNING, 7)),
    (7, Stage.EXITED): ((N, State.EXITED, 7), (N, State.EXITED, 7), (N, State.EXITED, 7)),
    (7, Stage.LOST): ((N, State.LOST, 7), (N, State.LOST, 7), (N, State.LOST, 7)),
    (8, Stage.READY): ((N, State.READY, 8), (N, State.READY, 8), (N, State.READY, 8)),
    (8, Stage.STALE): ((N, State.IDLE, 8), (N, State.IDLE, 8), (N, State.IDLE, 8)),
    (8, Stage.STARTING): ((N, State.RUNNING, 8), (N, State.RUNNING, 8), (N, State.RUNNING, 8)),
    (8, Stage.RUNNING): ((N, State.RUNNING, 8), (N, State.RUNNING, 8), (N, State.RUNNING, 8)),
    (8, Stage.EXITED): ((N, State.EXITED, 8), (N, State.EXITED, 8), (N, State.EXITED, 8)),
    (8, Stage.LOST): ((N, State.LOST, 8), (N, State.LOST, 8), (N, State.LOST, 8)),
}
ALIVE = (Stage.STARTING, Stage.RUNNING)


def run_of(known: tuple[int, Stage] | None) -> Run | None:
    return None if known is None else Run(*known)


def test_the_table_is_whole() -> None:
    assert set(TABLE) == {None, *product((6, 7, 8), Stage)}


@pytest.mark.parametrize("known", TABLE, ids=str)
def test_next_step_and_report(known: tuple[int, Stage] | None) -> None:
    run = run_of(known)
    for action, (step, state, generation) in zip(Action, TABLE[known], strict=True):
        order = Order(action=action, generation=7)
        assert decide(order, run) is step, action
        said = report(0, order, run)
        assert (said.state, said.generation) == (state, generation), action


@pytest.mark.parametrize("known", TABLE, ids=str)
def test_nothing_is_started_or_found_ready_beside_leftovers(known: tuple[int, Stage] | None) -> None:
    run = run_of(known)
    for action in Action:
        order = Order(action=action, generation=7)
        assert decide(order, run, leftovers=True) is not Next.CHECK
        said = report(0, order, run, leftovers=[41, 40])
        if run is None or not run.alive:
            assert (said.state, said.pid) == (State.STOPPING, 40)


@pytest.mark.parametrize("known", TABLE, ids=str)
def test_without_an_order_nothing_changes_and_leaving_ends_what_lives(
    known: tuple[int, Stage] | None,
) -> None:
    run = run_of(known)
    assert decide(None, run) is Next.NOTHING
    for order in (None, *(Order(action=action, generation=7) for action in Action)):
        expected = Next.END if run and run.stage in ALIVE else Next.NOTHING
        assert decide(order, run, leaving=True) is expected


def test_a_step_taken_is_not_asked_for_again() -> None:
    """What the steps lead to, asked again under the same order, asks for nothing."""
    prepare, run = (Order(action=action, generation=7) for action in (Action.PREPARE, Action.RUN))
    assert decide(prepare, Run(7, Stage.READY)) is Next.NOTHING  # after CHECK
    for stage in (Stage.STARTING, Stage.RUNNING, Stage.EXITED, Stage.LOST):  # after START
        assert decide(run, Run(7, stage)) is Next.NOTHING


def test_an_end_under_way_shows_in_the_report() -> None:
    said = report(2, None, Run(7, Stage.RUNNING, ending=True, pid=5, exit_code=3, ended_s_ago=1.5))
    assert (said.number, said.state, said.pid, said.exit_code) == (2, State.STOPPING, 5, 3)


def test_a_refusal_is_told_for_its_own_generation_only() -> None:
    refusal = Refusal(7, "no such program")
    for generation, state in ((7, State.REFUSED), (6, State.IDLE), (8, State.IDLE)):
        order = Order(action=Action.PREPARE, generation=generation)
        assert report(0, order, None, refusal=refusal).state is state
    ready = Run(7, Stage.READY)  # the reason has gone away since
    assert report(0, Order(action=Action.PREPARE, generation=7), ready, refusal=refusal).state is State.READY
    assert report(0, Order(action=Action.STOP, generation=7), None, refusal=refusal).state is State.IDLE


def test_an_ended_run_is_told_whole() -> None:
    ended = Run(
        7, Stage.EXITED, pid=5, exit_code=9, ended_s_ago=2.0, asked=True, reason="r", verdict="v", log_bytes=4
    )
    said = report(0, Order(action=Action.RUN, generation=7), ended)
    assert said.pid is None
    assert (said.exit_code, said.asked, said.reason, said.verdict, said.log_bytes) == (9, True, "r", "v", 4)
