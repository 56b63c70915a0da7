"""Which worker of a run failed first, and in whose words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from platform_launch.procguard.group import Group, Run
from platform_launch.procguard.member import Member
from platform_launch.procguard.ranks import WorkerName
from platform_launch.procguard.shapes import Failure
from platform_launch.procguard.wire import Report, State

Members = Mapping[WorkerName, Member]


@dataclass(frozen=True)
class Failed:
    """A failure and when it happened, on the server's monotonic clock."""

    at: float
    failure: Failure


def first_failure(run: Run, members: Members, *, clock_s: float, elapsed_s: float) -> Failed | None:
    """Return the failure of a running generation that happened first, None where there is none."""
    found: Failed | None = None
    for place in run.places:
        member = members[place.worker]
        text = _why_failed(run, member, elapsed_s)
        if text is None:
            continue
        at = clock_s - member.silent_s if member.ended_at is None else member.ended_at
        if found is None or at < found.at:
            found = Failed(at, _failure(member, run.generation, text))
    return found


def earlier_exit(group: Group, run: Run, members: Members) -> Failed | None:
    """Return an exit that came before the failure a stopping group knows of: its report came later."""
    if group.failed_at is None:
        return None
    found: Failed | None = None
    for place in run.places:
        member = members[place.worker]
        ended_at = member.ended_at
        if ended_at is None or not _exited_by_itself(run, member):
            continue
        if ended_at < (found.at if found else group.failed_at):
            found = Failed(ended_at, _failure(member, run.generation, _exit_text(member.report)))
    return found


def why_not_ready(run: Run, member: Member) -> str | None:
    """Say why a worker cannot start this generation at all, None where it can or may still become ready."""
    report = member.report
    if report is None or report.generation < run.generation:
        return None
    if report.generation > run.generation:
        return _from_the_future(report, run)
    if report.state is State.REFUSED:
        return report.reason or "its agent refuses to start it"
    if report.state is State.LOST:
        return report.reason or "its agent has lost its memory"
    if report.state in (State.RUNNING, State.STOPPING, State.EXITED):
        return f"started run {run.generation} before it was told to: is the server's database an old copy?"
    return None


def has_finished(run: Run, member: Member) -> bool:
    """Tell whether a worker has done its part: its command ended by itself and well."""
    report = member.report
    return (
        report is not None
        and member.says(run.generation, State.EXITED)
        and report.exit_code == 0
        and not report.asked
    )


def _why_failed(run: Run, member: Member, elapsed_s: float) -> str | None:
    settings, report = run.settings, member.report
    if has_finished(run, member):
        return None
    if member.silent_s > settings.fail_after_s:
        return f"no heartbeat for {member.silent_s:.0f} s"
    if report is None:
        return None
    if report.generation > run.generation:
        return _from_the_future(report, run)
    if report.generation < run.generation or report.state is State.IDLE:
        # Twice in a row: a heartbeat that was overtaken on the network says old things once.
        return "lost: its agent knows nothing of this run" if member.same > 1 else None
    if report.state is State.LOST:
        return report.reason or "lost: nobody can tell how it ended"
    if report.state is State.REFUSED:
        return report.reason or "its agent refuses to start it"
    if report.state is State.EXITED:
        return _exit_text(report)
    if report.state is State.READY and elapsed_s > settings.ready_within_s:
        return f"was told to start {elapsed_s:.0f} s ago and has not"
    return None


def _exited_by_itself(run: Run, member: Member) -> bool:
    report = member.report
    return (
        report is not None
        and member.says(run.generation, State.EXITED)
        and report.exit_code != 0
        and not report.asked
    )


def _from_the_future(report: Report, run: Run) -> str:
    return (
        f"reports run {report.generation}, newer than this one ({run.generation}): "
        "is the server's database an old copy? Start the group again"
    )


def _exit_text(report: Report | None) -> str:
    if report is None:
        return ""
    if report.asked:
        return report.reason or "was stopped on its node"
    if report.exit_code is None:
        return report.reason or "ended, nobody knows how"
    ended = f"ended with exit code {report.exit_code}"
    return f"{ended}: {report.reason}" if report.reason else ended


def _failure(member: Member, generation: int, text: str) -> Failure:
    report = member.report
    about = report is not None and report.generation == generation
    return Failure(
        worker=str(member.worker),
        text=text,
        exit_code=report.exit_code if report and about else None,
        verdict=report.verdict if report and about else "",
    )
