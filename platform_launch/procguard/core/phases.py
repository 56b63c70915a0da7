"""How a group moves: users' requests, how it enters a phase, and its next step in each phase. Pure.

The next step follows from the group, its workers' reports and the time. The caller writes the next group
before it answers heartbeats accordingly. A decision that could not be written is made again from the next
reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.shapes.groups import GroupPhase, GroupSettings
from platform_launch.procguard.api.wire import WorkerState
from platform_launch.procguard.core.failures import (
    DatedFailure,
    earlier_exit,
    failure_of,
    first_failure,
    has_finished,
    reported,
    whose,
    why_not_ready,
    with_silent,
)
from platform_launch.procguard.core.freeze import freeze
from platform_launch.procguard.core.group import CannotStartError, Group, GroupEvent, GroupRun, GroupStep
from platform_launch.procguard.core.registry import Members, WorkerSnapshot
from platform_launch.sentences import Sentence, Value, listed, sentence


def enter(group: Group, phase: GroupPhase, at: datetime, **changes: object) -> Group:
    """Return the group in another phase."""
    return group.but(phase=phase, phase_since=at, silent=(), **changes)


def begin(group: Group, members: Members, at: datetime, restarts_used: int) -> GroupStep:
    """Begin a new generation, whose rank table is frozen here. Raises CannotStartError."""
    run = freeze(_settings(group), group.workers, members, group.generation)
    fresh = enter(
        group,
        GroupPhase.PREPARING,
        at,
        generation=run.generation,
        run=run,
        run_number=group.run_number + 1,
        requested_by=group.then_by or group.requested_by,
        then_by="",
        requested_at=at,
        restarts_used=restarts_used,
        then=None,
        failure=None,
        previous_failure=(group.failure or group.previous_failure) if restarts_used else None,
        failed_at=None,
        started_at=None,
        ended_at=None,
        queued_at=None,
    )
    return GroupStep(fresh, (GroupEvent("preparing", sentence("run", run=fresh.run_number)),))


def _settings(group: Group) -> GroupSettings:
    """Return the settings of the next run. The nodes of a queued group are known only now."""
    nodes = [worker.node for worker in group.workers]
    if not group.borrowed or group.settings.master_addr in nodes:
        return group.settings
    return group.settings.but(master_addr=nodes[0], world_size=None)


def queue(group: Group, at: datetime) -> GroupStep:
    """Put a group into the queue; no change if it is active."""
    if group.active or group.phase is GroupPhase.QUEUED:
        return GroupStep(group)
    queued = enter(group, GroupPhase.QUEUED, at, queued_at=at, failure=None, previous_failure=None)
    count = group.settings.queue_workers or 0
    return GroupStep(queued, (GroupEvent("queued", sentence("queued", count=count)),))


def start(group: Group, members: Members, at: datetime) -> GroupStep:
    """Start a group; no change if it is active. Raises CannotStartError."""
    if not group.active:
        return _as_requested(begin(group, members, at, 0), "start")
    return _again(group, members, "start") if group.phase is GroupPhase.STOPPING else GroupStep(group)


def restart(group: Group, members: Members, at: datetime) -> GroupStep:
    """Stop a group and start it again; one at rest is started. Raises CannotStartError."""
    if not group.active:
        return _as_requested(begin(group, members, at, 0), "restart")
    if group.phase is GroupPhase.STOPPING:
        return _again(group, members, "restart")
    freeze(_settings(group), group.workers, members, group.generation)  # refuse before anything is stopped
    stopping = enter(group, GroupPhase.STOPPING, at, then=GroupPhase.PREPARING)
    return GroupStep(stopping, (GroupEvent("restart"),))


def stop(group: Group, at: datetime) -> GroupStep:
    """Stop a group and keep it stopped; no change at rest, or if it is stopping after a failure."""
    if group.phase is GroupPhase.QUEUED:
        return GroupStep(enter(group, GroupPhase.IDLE, at, queued_at=None), (GroupEvent("unqueued"),))
    if group.phase is GroupPhase.STOPPING:
        if group.then in (GroupPhase.STOPPED, GroupPhase.FAILED):
            return GroupStep(group)
        return GroupStep(group.but(then=GroupPhase.STOPPED), (GroupEvent("stop"),))
    if not group.active:
        return GroupStep(group)
    return GroupStep(enter(group, GroupPhase.STOPPING, at, then=GroupPhase.STOPPED), (GroupEvent("stop"),))


def _again(group: Group, members: Members, action: str) -> GroupStep:
    if group.then is GroupPhase.PREPARING:
        return GroupStep(group)
    freeze(_settings(group), group.workers, members, group.generation)
    event = GroupEvent(action, sentence("when-stopped"))
    return GroupStep(group.but(then=GroupPhase.PREPARING), (event,))


def _as_requested(step: GroupStep, action: str) -> GroupStep:
    """Record that a user requested this, instead of the server's own event."""
    return GroupStep(step.group, (GroupEvent(action, sentence("run", run=step.group.run_number)),))


_MOST_REASONS = 4


@dataclass(frozen=True)
class StepTime:
    """The time of a step.

    ``clock_s`` and ``elapsed_s`` (in the group's phase, or since the server started) are monotonic: a wall
    clock that jumps ends no run. ``at`` is for display.
    """

    clock_s: float
    elapsed_s: float
    at: datetime


def next_step(group: Group, members: Members, moment: StepTime) -> GroupStep:
    """Return the group's next step; the same group if there is none.

    ``members`` has all its workers while it is active, and afterwards the one that failed.
    """
    step = _STEPS.get(group.phase)
    if step is None or group.run is None:
        return GroupStep(_with_verdict(group, members))
    return step(group, group.run, members, moment)


def waiting_for(group: Group, members: Members) -> tuple[WorkerName, ...]:
    """Return the workers it waits for: those not ready while it prepares, those still running while it
    stops.
    """
    run = group.run
    if run is None:
        return ()
    if group.phase is GroupPhase.PREPARING:
        return tuple(place.worker for place in run.places if not _is_ready(run, members[place.worker]))
    if group.phase is GroupPhase.STOPPING:
        return tuple(worker for worker in group.workers if _may_still_run(run, members[worker]))
    return ()


def _prepare(group: Group, run: GroupRun, members: Members, moment: StepTime) -> GroupStep:
    for place in run.places:
        why = why_not_ready(run, members[place.worker])
        if why is not None:
            failure = failure_of(sentence("cannot-start", reason=why), place.worker)
            return _fail(group, run, DatedFailure(moment.clock_s, failure), moment.at)
    missing = waiting_for(group, members)
    if not missing:
        running = enter(group, GroupPhase.RUNNING, moment.at, started_at=moment.at)
        return GroupStep(running, (GroupEvent("running", sentence("run", run=group.run_number)),))
    if moment.elapsed_s > run.settings.ready_within_s:
        cause = sentence(
            "not-ready",
            seconds=f"{run.settings.ready_within_s:g}",
            workers=_reasons(run, members, missing),
        )
        failure = failure_of(cause, missing[0])
        return _fail(group, run, DatedFailure(moment.clock_s, failure), moment.at)
    return GroupStep(group)


def _watch(group: Group, run: GroupRun, members: Members, moment: StepTime) -> GroupStep:
    failed = first_failure(run, members, clock_s=moment.clock_s, elapsed_s=moment.elapsed_s)
    if failed is not None:
        return _fail(group, run, failed, moment.at, _overdue(run, members))
    if all(has_finished(run, members[place.worker]) for place in run.places):
        ended = enter(group, GroupPhase.FINISHED, moment.at, ended_at=moment.at)
        return GroupStep(ended, (GroupEvent("finished", sentence("run", run=group.run_number)),))
    silent = _overdue(run, members)
    if silent == group.silent:
        return GroupStep(group)
    events: tuple[GroupEvent, ...] = ()
    if not group.silent:
        names = listed([str(worker) for worker in silent])
        events = (GroupEvent("degraded", sentence("silent-workers", workers=names)),)
    elif not silent:
        events = (GroupEvent("recovered", sentence("all-heard")),)
    return GroupStep(group.but(silent=silent), events)


def _stop(group: Group, run: GroupRun, members: Members, moment: StepTime) -> GroupStep:
    group = _with_verdict(group, members)
    earlier = earlier_exit(group, run, members)
    if earlier is not None:
        failure = earlier.failure.but(run_number=group.run_number, generation=run.generation)
        group = group.but(failure=failure, failed_at=earlier.at)
    if waiting_for(group, members):
        return GroupStep(group)
    then = group.then or GroupPhase.STOPPED
    if then is GroupPhase.PREPARING:
        return _begin_or_fail(group, members, moment, 0)
    if then is GroupPhase.BACKING_OFF:
        return GroupStep(enter(group, then, moment.at, then=None))
    detail = sentence("run", run=group.run_number)
    if then is GroupPhase.FAILED and group.failure:
        detail = sentence("run-failed", run=group.run_number, failure=whose(group.failure))
    ended = enter(group, then, moment.at, then=None, ended_at=moment.at)
    return GroupStep(ended, (GroupEvent(then.value, detail),))


def _back_off(group: Group, run: GroupRun, members: Members, moment: StepTime) -> GroupStep:  # noqa: ARG001 - a step
    if moment.elapsed_s < group.backoff_s:
        return GroupStep(_with_verdict(group, members))
    return _begin_or_fail(group, members, moment, group.restarts_used + 1)


_STEPS: Mapping[GroupPhase, Callable[[Group, GroupRun, Members, StepTime], GroupStep]] = {
    GroupPhase.PREPARING: _prepare,
    GroupPhase.RUNNING: _watch,
    GroupPhase.STOPPING: _stop,
    GroupPhase.BACKING_OFF: _back_off,
}


def _begin_or_fail(group: Group, members: Members, moment: StepTime, restarts_used: int) -> GroupStep:
    try:
        return begin(group, members, moment.at, restarts_used)
    except CannotStartError as error:
        failure = failure_of(sentence("cannot-start-again", reason=error.sentences), None)
        before = group.failure or group.previous_failure
        ended = enter(
            group,
            GroupPhase.FAILED,
            moment.at,
            then=None,
            failure=failure,
            previous_failure=before,
            ended_at=moment.at,
        )
        return GroupStep(ended, (GroupEvent("failed", whose(failure)),))


def _fail(
    group: Group, run: GroupRun, failed: DatedFailure, at: datetime, overdue: tuple[WorkerName, ...] = ()
) -> GroupStep:
    """Stop the others: a run fails as a whole. What follows depends on the remaining restarts."""
    failure = failed.failure.but(run_number=group.run_number, generation=run.generation)
    others = [str(worker) for worker in overdue if str(worker) != failure.worker]
    if others:
        failure = with_silent(failure, listed(others))
    again = group.restarts_used < run.settings.max_restarts
    stopping = enter(
        group,
        GroupPhase.STOPPING,
        at,
        then=GroupPhase.BACKING_OFF if again else GroupPhase.FAILED,
        failure=failure,
        failed_at=failed.at,
    )
    number, cause = group.run_number, whose(failure)
    detail = sentence("run-failed", run=number, failure=cause)
    if again:
        most = run.settings.max_restarts
        detail = sentence("run-fails", run=number, failure=cause, restart=group.restarts_used + 1, most=most)
    return GroupStep(stopping, (GroupEvent("failing", detail),))


def _is_ready(run: GroupRun, member: WorkerSnapshot) -> bool:
    """Whether it could start now: not if it has gone silent since it was ready."""
    return member.is_in(run.generation, WorkerState.READY) and member.silent_s <= run.settings.silent_after_s


def _may_still_run(run: GroupRun, member: WorkerSnapshot) -> bool:
    """Whether to wait for this worker's end. One that is still ready may be about to start.

    A silent one would have ended by now if it had received the order, so longer waiting is useless.
    """
    settings = run.settings
    if member.silent_s > min(settings.fail_after_s, settings.silent_after_s + settings.grace_s):
        return False
    return member.report is None or member.busy or member.is_in(run.generation, WorkerState.READY)


def _reasons(run: GroupRun, members: Members, missing: Sequence[WorkerName]) -> Value:
    """Return the first workers that are missing, each with the reason."""
    first: list[str | Sentence] = [
        sentence("not-ready-worker", worker=str(worker), why=_why_missing(members[worker], run))
        for worker in missing[:_MOST_REASONS]
    ]
    return first if len(missing) <= len(first) else sentence("list-cut", items=first, count=len(missing))


def _why_missing(member: WorkerSnapshot, run: GroupRun) -> Sentence:
    report = member.report
    if member.silent_s > run.settings.silent_after_s or report is None:
        return sentence("silent", seconds=f"{member.silent_s:.0f}")
    if member.busy:
        return sentence("still-busy", generation=report.generation, state=report.state.value)
    return reported(report) or sentence("no-answer")


def _overdue(run: GroupRun, members: Members) -> tuple[WorkerName, ...]:
    """Return the workers whose heartbeat is overdue, except those that have finished."""
    limit = run.settings.silent_after_s
    late = (place.worker for place in run.places if members[place.worker].silent_s > limit)
    return tuple(worker for worker in late if not has_finished(run, members[worker]))


def _with_verdict(group: Group, members: Members) -> Group:
    """Take the verdict from the failing worker's agent: it takes longer than the failure itself."""
    failure, run = group.failure, group.run
    if failure is None or failure.worker is None or failure.verdict or run is None:
        return group
    member = members.get(WorkerName.parse(failure.worker))
    report = member.report if member else None
    if report is None or report.generation != run.generation or not report.verdict:
        return group
    found = {"verdict": report.verdict, "why": report.why, "line": report.cause_line}
    return group.but(failure=failure.but(**found))
