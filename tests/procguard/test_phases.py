"""A group's steps: by hand where people are told the outcome, by exhaustion and random walks for the rest."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.shapes.groups import GroupPhase, GroupSettings
from platform_launch.procguard.api.wire import OrderAction, WorkerReport, WorkerState
from platform_launch.procguard.control.orders import order_for
from platform_launch.procguard.core import phases
from platform_launch.procguard.core.freeze import HIGHEST_GENERATION
from platform_launch.procguard.core.group import CannotStartError, Group
from platform_launch.procguard.core.phases import StepTime, next_step, waiting_for
from platform_launch.procguard.core.registry import WorkerSnapshot
from tests.procguard.walk import AT, Walk

A, B = WorkerName("gn6", 0), WorkerName("gn7", 0)
Reports = dict[WorkerName, WorkerSnapshot]


def member(
    worker: WorkerName, state: WorkerState | None = None, generation: int = 1, **about: Any
) -> WorkerSnapshot:
    kept = {name: about.pop(name) for name in ("silent_s", "same", "ended_at") if name in about}
    report = None if state is None else WorkerReport(number=0, state=state, generation=generation, **about)
    return WorkerSnapshot(worker, report, **{"same": 2, **kept})


def both(first: WorkerSnapshot, second: WorkerSnapshot) -> Reports:
    return {A: first, B: second}


def moment(elapsed_s: float = 1.0) -> StepTime:
    return StepTime(1000.0, elapsed_s, AT)


def begun(**settings: Any) -> Group:
    wanted = GroupSettings(
        **{"master_addr": "gn6", "command": "python train.py", "fail_after_s": 60, **settings}
    )
    group = Group(name="g", settings=wanted, phase=GroupPhase.IDLE, phase_since=AT, workers=(A, B))
    return phases.start(group, both(member(A), member(B)), AT).group


def running(**settings: Any) -> Group:
    ready = both(member(A, WorkerState.READY), member(B, WorkerState.READY))
    return next_step(begun(**settings), ready, moment()).group


def test_nothing_starts_before_all_are_ready() -> None:
    group = begun()
    assert group.phase is GroupPhase.PREPARING
    one = both(member(A, WorkerState.READY), member(B, WorkerState.IDLE, 0))
    step = next_step(group, one, moment())
    assert step.group is group
    assert waiting_for(group, one) == (B,)
    assert order_for(group, A, 0).action is OrderAction.PREPARE
    assert order_for(group, A, 0).check_port == 29500
    assert order_for(group, B, 0).check_port is None, "the port is rank 0's"
    after = next_step(group, both(member(A, WorkerState.READY), member(B, WorkerState.READY)), moment()).group
    assert after.phase is GroupPhase.RUNNING
    order = order_for(after, B, 0)
    assert (order.action, order.generation, order.command) == (OrderAction.RUN, 1, ("python", "train.py"))
    assert order.environment["RANK"] == "1"


def test_a_worker_that_was_ready_and_went_silent_is_waited_for() -> None:
    late = both(member(A, WorkerState.READY), member(B, WorkerState.READY, silent_s=16.0))
    assert next_step(begun(), late, moment()).group.phase is GroupPhase.PREPARING


def test_not_ready_in_time_names_who_and_why() -> None:
    group = begun(ready_within_s=10)
    missing = both(member(A, WorkerState.READY), member(B, silent_s=11))
    after = next_step(group, missing, moment(10.5)).group
    assert after.failure is not None
    assert (after.phase, after.then) == (GroupPhase.STOPPING, GroupPhase.FAILED)
    assert after.failure.text == "not ready within 10 s: gn7-0 (no heartbeat for 11 s)"


def test_one_that_refuses_ends_the_start_at_once() -> None:
    refused = both(
        member(A, WorkerState.READY), member(B, WorkerState.REFUSED, reason="no such file: train.py")
    )
    after = next_step(begun(), refused, moment()).group
    assert after.failure is not None
    assert after.failure.worker == "gn7-0"
    assert after.failure.text == "cannot start: no such file: train.py"


def test_the_first_failure_is_the_one_that_ended_first_whoever_told_it_first() -> None:
    group = running()
    late = member(A, WorkerState.EXITED, exit_code=1, ended_at=999.0)
    step = next_step(group, both(late, member(B, WorkerState.RUNNING)), moment())
    assert step.group.failure is not None
    assert step.group.failure.worker == "gn6-0"
    assert order_for(step.group, B, 1).action is OrderAction.STOP
    told = both(
        late, member(B, WorkerState.EXITED, exit_code=7, ended_at=997.5, verdict="CUDA out of memory")
    )
    after = next_step(step.group, told, moment()).group
    assert after.phase is GroupPhase.FAILED
    assert after.failure is not None
    assert (after.failure.worker, after.failure.exit_code) == ("gn7-0", 7)
    assert after.failure.verdict == "CUDA out of memory"


def test_an_exit_that_was_ordered_is_nobodys_failure() -> None:
    group = running()
    stopping = next_step(
        group,
        both(member(A, WorkerState.EXITED, exit_code=1, ended_at=999.0), member(B, WorkerState.RUNNING)),
        moment(),
    ).group
    told = both(
        member(A, WorkerState.EXITED, exit_code=1, ended_at=999.0),
        member(B, WorkerState.EXITED, exit_code=-15, stop_requested=True, ended_at=990.0),
    )
    after = next_step(stopping, told, moment()).group
    assert after.failure is not None
    assert after.failure.worker == "gn6-0"


def test_a_verdict_that_comes_after_the_end_is_taken_over() -> None:
    group = running()
    failed = both(member(A, WorkerState.EXITED, exit_code=1, ended_at=999.0), member(B, WorkerState.LOST))
    ended = next_step(next_step(group, failed, moment()).group, failed, moment()).group
    assert ended.phase is GroupPhase.FAILED
    told = {**failed, A: member(A, WorkerState.EXITED, exit_code=1, ended_at=999.0, verdict="NaN in step 3")}
    after = next_step(ended, told, moment()).group
    assert after.failure is not None
    assert after.failure.verdict == "NaN in step 3"
    assert next_step(after, told, moment()).group is after


def test_finished_when_all_ended_well_and_those_may_go_silent() -> None:
    group = running()
    done = member(A, WorkerState.EXITED, exit_code=0, ended_at=1.0, silent_s=100.0)
    assert next_step(group, both(done, member(B, WorkerState.RUNNING)), moment()).group is group
    after = next_step(
        group, both(done, member(B, WorkerState.EXITED, exit_code=0, ended_at=2.0)), moment()
    ).group
    assert after.phase is GroupPhase.FINISHED


def test_silent_is_degraded_then_failed() -> None:
    group = running(silent_after_s=10, fail_after_s=30)
    quiet = both(member(A, WorkerState.RUNNING), member(B, WorkerState.RUNNING, silent_s=11))
    step = next_step(group, quiet, moment())
    assert step.group.silent == (B,)
    assert [event.action for event in step.events] == ["degraded"]
    heard = both(member(A, WorkerState.RUNNING), member(B, WorkerState.RUNNING))
    assert [event.action for event in next_step(step.group, heard, moment()).events] == ["recovered"]
    gone = both(member(A, WorkerState.RUNNING), member(B, WorkerState.RUNNING, silent_s=31))
    after = next_step(step.group, gone, moment()).group
    assert after.phase is GroupPhase.STOPPING
    assert after.failure is not None
    assert after.failure.text == "no heartbeat for 31 s"
    assert waiting_for(after, gone) == (A,), "one that is gone is not waited for"


def test_a_stop_does_not_wait_for_a_dead_node_as_long_as_a_patient_group_would() -> None:
    group = running(silent_after_s=10, grace_s=5, fail_after_s=86_400).but(phase=GroupPhase.STOPPING)
    quiet = both(member(A, WorkerState.IDLE), member(B, WorkerState.RUNNING, silent_s=14))
    assert waiting_for(group, quiet) == (B,)
    gone = both(member(A, WorkerState.IDLE), member(B, WorkerState.RUNNING, silent_s=16))
    assert waiting_for(group, gone) == ()


@pytest.mark.parametrize(
    ("state", "generation", "text"),
    [
        (WorkerState.LOST, 1, "it is unknown how it ended"),
        (WorkerState.IDLE, 0, "does not know this run"),
        (WorkerState.EXITED, 0, "does not know this run"),
        (WorkerState.REFUSED, 1, "refuses"),
        (WorkerState.RUNNING, 9, "newer than this run's"),
    ],
)
def test_a_worker_that_is_not_where_its_group_is_has_failed(
    state: WorkerState, generation: int, text: str
) -> None:
    reports = both(member(A, WorkerState.RUNNING), member(B, state, generation))
    after = next_step(running(), reports, moment()).group
    assert after.failure is not None
    assert after.failure.worker == "gn7-0"
    assert text in after.failure.text


def test_one_old_message_that_was_overtaken_ends_nothing() -> None:
    group = running()
    old = both(member(A, WorkerState.RUNNING), member(B, WorkerState.IDLE, 0, same=1))
    assert next_step(group, old, moment()).group is group


def test_one_that_never_starts_is_noticed() -> None:
    reports = both(member(A, WorkerState.RUNNING), member(B, WorkerState.READY))
    assert next_step(running(), reports, moment(59)).group.phase is GroupPhase.RUNNING
    after = next_step(running(), reports, moment(61)).group
    assert after.failure is not None
    assert "has not started" in after.failure.text


def test_restarts_back_off_double_and_end() -> None:
    group = running(max_restarts=2, backoff_s=200)
    failed = both(member(A, WorkerState.EXITED, exit_code=1), member(B, WorkerState.EXITED, exit_code=1))
    waits = []
    for generation in (2, 3):
        group = next_step(next_step(group, failed, moment()).group, failed, moment()).group
        assert group.phase is GroupPhase.BACKING_OFF
        assert group.failure is not None
        waits.append(group.backoff_s)
        assert next_step(group, failed, moment(group.backoff_s - 1)).group.phase is GroupPhase.BACKING_OFF
        group = next_step(group, failed, moment(group.backoff_s)).group
        assert (group.phase, group.generation) == (GroupPhase.PREPARING, generation)
        ready = [member(worker, WorkerState.READY, generation) for worker in (A, B)]
        group = next_step(group, both(*ready), moment()).group
        failed = {w: member(w, WorkerState.EXITED, generation, exit_code=1) for w in (A, B)}
    assert waits == [200.0, 300.0], "doubled, five minutes at most"
    group = next_step(next_step(group, failed, moment()).group, failed, moment()).group
    assert (group.phase, group.restarts_used) == (GroupPhase.FAILED, 2)
    fresh = phases.start(group, failed, AT).group
    assert (fresh.restarts_used, fresh.generation, fresh.failure) == (0, 4, None)


def test_settings_that_were_broken_meanwhile_end_the_restarts_with_the_reason() -> None:
    group = running(max_restarts=1).but(settings=GroupSettings(master_addr="gn9", command="x"))
    failed = both(member(A, WorkerState.LOST), member(B, WorkerState.LOST))
    group = next_step(next_step(group, failed, moment()).group, failed, moment()).group
    after = next_step(group, failed, moment(1000)).group
    assert after.phase is GroupPhase.FAILED
    assert after.failure is not None
    assert "gn9" in after.failure.text


def test_asked_to_start_while_it_stops_it_starts_when_it_has_stopped() -> None:
    stopping = phases.stop(running(), AT).group
    reports = both(member(A, WorkerState.RUNNING), member(B, WorkerState.RUNNING))
    again = phases.start(stopping, reports, AT).group
    assert again.then is GroupPhase.PREPARING
    assert phases.start(again, reports, AT).group is again
    half = both(
        member(A, WorkerState.EXITED, stop_requested=True, exit_code=-15), member(B, WorkerState.STOPPING)
    )
    assert next_step(again, half, moment()).group.phase is GroupPhase.STOPPING
    done = both(*(member(w, WorkerState.EXITED, stop_requested=True, exit_code=-15) for w in (A, B)))
    after = next_step(again, done, moment()).group
    assert (after.phase, after.generation) == (GroupPhase.PREPARING, 2)
    assert phases.stop(again, AT).group.then is GroupPhase.STOPPED


def test_stopping_waits_for_one_whose_start_may_be_under_way() -> None:
    stopping = phases.stop(running(), AT).group
    ready = both(member(A, WorkerState.IDLE), member(B, WorkerState.READY))
    assert waiting_for(stopping, ready) == (B,)
    assert waiting_for(stopping, both(member(A), member(B, WorkerState.IDLE))) == (A,), (
        "not heard since the start"
    )


def test_a_generation_is_higher_than_any_that_a_worker_had() -> None:
    group = Group(name="g", settings=begun().settings, phase=GroupPhase.IDLE, phase_since=AT, workers=(A, B))
    known = both(member(A, WorkerState.EXITED, 7), WorkerSnapshot(B, generation=9))
    assert phases.start(group, known, AT).group.generation == 10
    broken = both(member(A, WorkerState.EXITED, HIGHEST_GENERATION), member(B))
    with pytest.raises(CannotStartError, match=f"gn6-0 reported generation {HIGHEST_GENERATION}"):
        phases.start(group, broken, AT)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"command": ""}, "no-command"),
        ({"command": "python 'train.py"}, "bad-command"),
        ({"master_addr": ""}, "no-master"),
        ({"world_size": 3}, "world-size-above"),
    ],
)
def test_what_cannot_start_says_why(settings: dict[str, Any], code: str) -> None:
    with pytest.raises(CannotStartError) as error:
        begun(**settings)
    assert [problem.code for problem in error.value.problems] == [code]


def test_no_command_of_the_group_is_each_agents_own() -> None:
    settings = GroupSettings(master_addr="gn6")
    group = Group(name="g", settings=settings, phase=GroupPhase.IDLE, phase_since=AT, workers=(A, B))
    own = both(WorkerSnapshot(A, command=("run", "a")), WorkerSnapshot(B, command=("run", "b c")))
    run = phases.start(group, own, AT).group.run
    assert run is not None
    assert run.commands == {"gn6": ("run", "a"), "gn7": ("run", "b c")}


def _any_member(worker: WorkerName, *silences_s: float) -> list[WorkerSnapshot]:
    """Every kind of report, about this run, an earlier and a later one, from heard to gone."""
    states: list[tuple[WorkerState | None, dict[str, Any]]] = [(state, {}) for state in WorkerState]
    states += [(WorkerState.EXITED, {"exit_code": 0}), (WorkerState.EXITED, {"exit_code": 3}), (None, {})]
    states += [(WorkerState.EXITED, {"exit_code": 0, "stop_requested": True})]
    return [
        member(worker, state, generation, silent_s=silent_s, ended_at=900.0, **about)
        for (state, about), generation, silent_s in product(states, (0, 1, 2), silences_s)
    ]


@pytest.mark.parametrize(
    "phase", [GroupPhase.PREPARING, GroupPhase.RUNNING, GroupPhase.STOPPING, GroupPhase.BACKING_OFF]
)
def test_whatever_is_reported(phase: GroupPhase) -> None:
    base = running(max_restarts=1)
    thens = (GroupPhase.STOPPED, GroupPhase.PREPARING) if phase is GroupPhase.STOPPING else (None,)
    groups = [base.but(phase=phase, then=then, failed_at=950.0) for then in thens]
    members = (_any_member(A, 0.0, 20.0, 70.0), _any_member(B, 0.0, 70.0))
    for group, first, second, elapsed_s in product(groups, *members, (1.0, 1e4)):
        reports = both(first, second)
        after = next_step(group, reports, moment(elapsed_s)).group
        for known in reports.values():
            ready, heard = known.is_in(1, WorkerState.READY), known.silent_s < 60
            if after.phase is GroupPhase.RUNNING and phase is GroupPhase.PREPARING:
                assert ready
                assert known.silent_s < 15
            if phase is GroupPhase.STOPPING and after.phase is not GroupPhase.STOPPING:
                assert not (heard and (known.busy or ready or known.report is None))
            if after.phase is GroupPhase.FINISHED:
                assert known.is_in(1, WorkerState.EXITED)
                assert known.report is not None
                assert known.report.exit_code == 0
        assert after.generation >= group.generation
        assert (after.generation > group.generation) <= (after.phase is GroupPhase.PREPARING)
        if after.phase is GroupPhase.STOPPING and phase is not GroupPhase.STOPPING:
            assert after.failure is not None
            assert after.failure.text


def test_random_walks() -> None:
    seen: set[GroupPhase] = set()
    starts = 0
    for seed in range(60):
        walk = Walk(seed)
        for _ in range(500):
            walk.step()
        seen |= walk.seen
        starts += sum(len(agent.starts) for agent in walk.agents)
    assert seen >= set(GroupPhase) - {GroupPhase.IDLE, GroupPhase.DEGRADED, GroupPhase.QUEUED}, (
        "the walks come everywhere"
    )
    assert starts > 150


def test_a_spare_takes_the_place_of_a_lost_node_at_the_restart() -> None:
    spare = WorkerName("gn8", 0)
    wanted: dict[str, Any] = {"world_size": 2, "max_restarts": 1, "backoff_s": 0, "fail_after_s": 60}
    settings = GroupSettings(master_addr="gn6", command="x", **wanted)
    group = Group(name="g", settings=settings, phase=GroupPhase.IDLE, phase_since=AT, workers=(A, B, spare))
    idle = both(member(A), member(B)) | {spare: member(spare, WorkerState.IDLE, 0)}
    group = phases.start(group, idle, AT).group
    assert group.run is not None
    assert (set(group.run.place_of), set(group.run.table.idle)) == ({A, B}, {spare})
    ready = both(member(A, WorkerState.READY), member(B, WorkerState.READY)) | {
        spare: member(spare, WorkerState.IDLE, 0)
    }
    group = next_step(group, ready, moment()).group
    lost = both(member(A, WorkerState.RUNNING), member(B, WorkerState.RUNNING, silent_s=61))
    group = next_step(group, lost | {spare: member(spare, WorkerState.IDLE, 0)}, moment()).group
    stopped = both(
        member(A, WorkerState.EXITED, stop_requested=True), member(B, WorkerState.RUNNING, silent_s=62)
    )
    stopped |= {spare: member(spare, WorkerState.IDLE, 0)}
    for _ in range(2):
        group = next_step(group, stopped, moment()).group
    assert (group.phase, group.generation) == (GroupPhase.PREPARING, 2)
    assert group.run is not None
    assert (set(group.run.place_of), set(group.run.table.idle)) == ({A, spare}, {B})
    assert order_for(group, B, 1).action is OrderAction.STOP, "what still runs there ends when it is heard"
    drained = {A: member(A), B: member(B)._replace(drained=True), spare: member(spare, WorkerState.IDLE, 0)}
    again = phases.start(group.but(phase=GroupPhase.STOPPED), drained, AT).group
    assert again.run is not None
    assert again.run.table.idle == (B,)
