from __future__ import annotations

from typing import Any

import pytest

from platform_launch.procguard.api.ranks import RankTable, WorkerName
from platform_launch.procguard.api.shapes.groups import GroupFailure, GroupPhase, GroupSettings
from platform_launch.procguard.api.shapes.workers import WorkerStatus
from platform_launch.procguard.api.wire import WorkerReport, WorkerState
from platform_launch.procguard.control.queries import silent_after_s, worker_status
from platform_launch.procguard.core.group import Group, GroupRun
from tests.procguard.walk import AT

A = WorkerName("gn6", 0)


def a_report(state: WorkerState, **about: Any) -> WorkerReport:
    return WorkerReport(number=0, state=state, generation=1, **about)


def status(state: WorkerState | None, *, silent_s: float = 0.0, first: bool = False, **about: Any) -> str:
    report = None if state is None else a_report(state, **about)
    failure = GroupFailure(worker="gn6-0" if first else "gn7-0", text="ended with exit code 1")
    group = Group(
        name="g",
        settings=GroupSettings(),
        phase=GroupPhase.FAILED,
        phase_since=AT,
        workers=(A,),
        failure=failure,
    )
    return worker_status(str(A), report, group, silent=silent_s > silent_after_s(group)).value


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"exit_code": 0}, "finished"),
        ({"exit_code": 1}, "failed"),
        ({"exit_code": 1, "first": True}, "failed-first"),
        ({"exit_code": 137}, "failed"),
        ({"exit_code": 143}, "stopped"),
        ({"exit_code": -15}, "stopped"),
        ({"exit_code": 143, "first": True}, "failed-first"),
        ({"exit_code": 143, "stop_requested": True}, "stopped"),
        ({"exit_code": 137, "stop_requested": True}, "stopped"),
        ({"exit_code": 0, "stop_requested": True}, "stopped"),
        ({"exit_code": None}, "failed"),
        ({"exit_code": 0, "silent_s": 20.0}, "silent"),
    ],
)
def test_an_end_says_which_it_was(about: dict[str, Any], expected: str) -> None:
    assert status(WorkerState.EXITED, **about) == expected


@pytest.mark.parametrize(
    ("exit_code", "expected"),
    [(0, "finished"), (1, "stopped"), (143, "stopped"), (137, "failed"), (-11, "failed"), (None, "failed")],
)
def test_ranks_that_leave_before_their_agent_hears_of_a_stop_are_stopped(
    exit_code: int | None, expected: str
) -> None:
    run = GroupRun(generation=1, settings=GroupSettings(), table=RankTable(), commands={})
    group = Group(
        name="g",
        settings=GroupSettings(),
        phase=GroupPhase.STOPPING,
        phase_since=AT,
        workers=(A,),
        generation=1,
        run=run,
    )
    for phase in (GroupPhase.STOPPING, GroupPhase.STOPPED):
        report = a_report(WorkerState.EXITED, exit_code=exit_code)
        assert worker_status(str(A), report, group.but(phase=phase), silent=False).value == expected
    report = a_report(WorkerState.EXITED, exit_code=1)
    for other in (
        group.but(phase=GroupPhase.RUNNING),
        group.but(run=run.but(generation=2)),
        group.but(failure=GroupFailure(worker="gn7-0", text="ended with exit code 1")),
    ):
        assert worker_status(str(A), report, other, silent=False) is WorkerStatus.FAILED


def test_a_worker_that_is_not_heard_is_not_idle() -> None:
    assert status(None) == "unknown", "the server was started just now"
    assert status(None, silent_s=20.0) == "silent"
    assert status(WorkerState.RUNNING, silent_s=20.0, first=True) == "failed-first", "the group failed for it"
    assert status(WorkerState.RUNNING, first=True) == "running", "a later run of the same group"


@pytest.mark.parametrize("state", [state for state in WorkerState if state is not WorkerState.EXITED])
def test_other_reports_are_shown_as_they_are(state: WorkerState) -> None:
    assert WorkerStatus(status(state)) == WorkerStatus(state.value)
