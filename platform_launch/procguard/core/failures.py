"""Which worker of a run failed first, and in whose words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.shapes.groups import GroupFailure
from platform_launch.procguard.api.wire import WorkerReport, WorkerState
from platform_launch.procguard.core.group import Group, GroupRun
from platform_launch.procguard.core.snapshot import WorkerSnapshot

Members = Mapping[WorkerName, WorkerSnapshot]


@dataclass(frozen=True)
class FailureCause:
    """Why a worker failed, in English.

    ``code`` names the case for translations and ``values`` fill it in; it is empty for an agent's own words.
    """

    code: str
    text: str
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DatedFailure:
    """A failure and when it happened, on the server's monotonic clock."""

    at: float
    failure: GroupFailure


def first_failure(
    run: GroupRun, members: Members, *, clock_s: float, elapsed_s: float
) -> DatedFailure | None:
    """Return the failure of a running generation that happened first, None where there is none."""
    found: DatedFailure | None = None
    for place in run.places:
        member = members[place.worker]
        cause = _why_failed(run, member, elapsed_s)
        if cause is None:
            continue
        at = clock_s - member.silent_s if member.ended_at is None else member.ended_at
        if found is None or at < found.at:
            found = DatedFailure(at, _failure(member, run.generation, cause))
    return found


def earlier_exit(group: Group, run: GroupRun, members: Members) -> DatedFailure | None:
    """Return an exit that came before the failure a stopping group knows of: its report came later."""
    if group.failed_at is None:
        return None
    found: DatedFailure | None = None
    for place in run.places:
        member = members[place.worker]
        ended_at = member.ended_at
        report = member.report
        if report is None or ended_at is None or not _exited_by_itself(run, member):
            continue
        if ended_at < (found.at if found else group.failed_at):
            found = DatedFailure(ended_at, _failure(member, run.generation, _of_exit(report)))
    return found


def why_not_ready(run: GroupRun, member: WorkerSnapshot) -> FailureCause | None:
    """Say why a worker cannot start this generation at all, None where it can or may still become ready."""
    report = member.report
    if report is None or report.generation < run.generation:
        return None
    if report.generation > run.generation:
        return _from_the_future(report, run)
    if report.state is WorkerState.REFUSED:
        return _reported(report) or _REFUSES
    if report.state is WorkerState.LOST:
        return _reported(report) or FailureCause("forgetful", "its agent has lost its memory")
    if report.state in (WorkerState.RUNNING, WorkerState.STOPPING, WorkerState.EXITED):
        return FailureCause(
            "too-early",
            f"started generation {run.generation} before it was told to: is the database an old copy?",
            {"run": str(run.generation)},
        )
    return None


def has_finished(run: GroupRun, member: WorkerSnapshot) -> bool:
    """Tell whether a worker has done its part: its command ended by itself and well."""
    report = member.report
    return (
        report is not None
        and member.says(run.generation, WorkerState.EXITED)
        and report.exit_code == 0
        and not report.asked
    )


def _why_failed(run: GroupRun, member: WorkerSnapshot, elapsed_s: float) -> FailureCause | None:
    settings, report = run.settings, member.report
    if has_finished(run, member):
        return None
    if member.silent_s > settings.fail_after_s:
        seconds = f"{member.silent_s:.0f}"
        return FailureCause("silent", f"no heartbeat for {seconds} s", {"seconds": seconds})
    if report is None:
        return None
    if report.generation > run.generation:
        return _from_the_future(report, run)
    if report.generation < run.generation or report.state is WorkerState.IDLE:
        # Twice in a row: a heartbeat that was overtaken on the network says old things once.
        unknown = FailureCause("unknown-run", "lost: its agent knows nothing of this run")
        return unknown if member.same > 1 else None
    if report.state is WorkerState.LOST:
        return _reported(report) or FailureCause("lost", "lost: nobody can tell how it ended")
    if report.state is WorkerState.REFUSED:
        return _reported(report) or _REFUSES
    if report.state is WorkerState.EXITED:
        return _of_exit(report)
    if report.state is WorkerState.READY and elapsed_s > settings.ready_within_s:
        seconds = f"{elapsed_s:.0f}"
        return FailureCause(
            "not-started", f"was told to start {seconds} s ago and has not", {"seconds": seconds}
        )
    return None


def _exited_by_itself(run: GroupRun, member: WorkerSnapshot) -> bool:
    report = member.report
    return (
        report is not None
        and member.says(run.generation, WorkerState.EXITED)
        and report.exit_code != 0
        and not report.asked
    )


_REFUSES = FailureCause("refuses", "its agent refuses to start it")


def _reported(report: WorkerReport) -> FailureCause | None:
    return FailureCause("", report.reason) if report.reason else None


def _from_the_future(report: WorkerReport, run: GroupRun) -> FailureCause:
    return FailureCause(
        "newer-run",
        f"reports generation {report.generation}, newer than this run's ({run.generation}): "
        "is the server's database an old copy? Start the group again",
        {"reported": str(report.generation), "run": str(run.generation)},
    )


def _of_exit(report: WorkerReport) -> FailureCause:
    if report.asked:
        return _reported(report) or FailureCause("stopped", "was stopped on its node")
    if report.exit_code is None:
        return _reported(report) or FailureCause("ended", "ended, nobody knows how")
    code = str(report.exit_code)
    if report.reason:
        values = {"exit_code": code, "reason": report.reason}
        return FailureCause("exit-reason", f"ended with exit code {code}: {report.reason}", values)
    return FailureCause("exit", f"ended with exit code {code}", {"exit_code": code})


def _failure(member: WorkerSnapshot, generation: int, cause: FailureCause) -> GroupFailure:
    report = member.report
    about = report is not None and report.generation == generation
    return failure_of(
        cause,
        member.worker,
        exit_code=report.exit_code if report and about else None,
        verdict=report.verdict if report and about else "",
        line=report.cause_line if report and about else None,
    )


def failure_of(
    cause: FailureCause,
    worker: WorkerName | None,
    *,
    exit_code: int | None = None,
    verdict: str = "",
    line: int | None = None,
) -> GroupFailure:
    """Return what a group remembers of a failure."""
    return GroupFailure(
        worker=None if worker is None else str(worker),
        text=cause.text,
        code=cause.code,
        values=dict(cause.values),
        exit_code=exit_code,
        verdict=verdict,
        line=line,
    )
