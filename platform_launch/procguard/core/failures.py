"""Which worker of a run failed first, and why. Pure."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from platform_launch.procguard.api.english import english
from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.shapes.groups import GroupFailure
from platform_launch.procguard.api.wire import STALLED_S, QuarantineReport, WorkerReport, WorkerState
from platform_launch.procguard.core.group import Group, GroupRun
from platform_launch.procguard.core.registry import Members, WorkerSnapshot
from platform_launch.sentences import Sentence, Value, quoted, sentence
from platform_launch.why.answer.verdict import Verdict


@dataclass(frozen=True)
class DatedFailure:
    """A failure, and when it happened on the server's monotonic clock."""

    at: float
    failure: GroupFailure


def first_failure(
    run: GroupRun, members: Members, *, clock_s: float, elapsed_s: float
) -> DatedFailure | None:
    """Return the first failure of a running generation, None if there is none."""
    found: DatedFailure | None = None
    silent_limit_s = silence_limit_s(run, members)
    for place in run.places:
        member = members[place.worker]
        cause = _why_failed(run, member, elapsed_s, silent_limit_s)
        if cause is None:
            continue
        at = clock_s - member.silent_s if member.ended_at is None else member.ended_at
        if found is None or at < found.at:
            found = DatedFailure(at, _failure(member, run.generation, cause))
    return found


def earlier_exit(group: Group, run: GroupRun, members: Members) -> DatedFailure | None:
    """Return an exit that happened before the known failure of a stopping group but was reported later."""
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


def why_not_ready(run: GroupRun, member: WorkerSnapshot) -> Sentence | None:
    """Return why a worker cannot start this generation at all, None if it can or may still become ready."""
    report = member.report
    if report is None or report.generation < run.generation:
        return None
    if report.generation > run.generation:
        return _from_the_future(report, run)
    if report.state is WorkerState.REFUSED:
        return reported(report) or _REFUSES
    if report.state is WorkerState.LOST:
        return reported(report) or sentence("forgetful")
    if report.state in (WorkerState.RUNNING, WorkerState.STOPPING, WorkerState.EXITED):
        return sentence("too-early", run=str(run.generation))
    return None


def has_finished(run: GroupRun, member: WorkerSnapshot) -> bool:
    """Return whether a worker's command ended by itself with exit code 0."""
    report = member.report
    return (
        report is not None
        and member.is_in(run.generation, WorkerState.EXITED)
        and report.exit_code == 0
        and not report.stop_requested
    )


def silence_limit_s(run: GroupRun, members: Members) -> float:
    """Return how long a worker may be silent: less if those that usually write every few seconds have
    stalled.
    """
    limit_s, silent_after_s = run.settings.fail_after_s, run.settings.silent_after_s
    moved = [
        member.report.moved_s_ago
        for one in run.places
        if (member := members.get(one.worker)) and member.silent_s <= silent_after_s
        if member.report and member.busy and member.report.moved_s_ago is not None
    ]
    return min(limit_s, STALLED_S) if moved and min(moved) > STALLED_S else limit_s


def _why_failed(
    run: GroupRun, member: WorkerSnapshot, elapsed_s: float, silent_limit_s: float
) -> Sentence | None:
    settings, report = run.settings, member.report
    if has_finished(run, member):
        return None
    if member.silent_s > silent_limit_s:
        return sentence("silent", seconds=f"{member.silent_s:.0f}")
    if report is None:
        return None
    if report.generation > run.generation:
        return _from_the_future(report, run)
    if report.generation < run.generation or report.state is WorkerState.IDLE:
        # Twice in a row: a heartbeat overtaken on the network may report an old state once.
        return sentence("unknown-run") if member.same > 1 else None
    if report.state is WorkerState.LOST:
        return reported(report) or sentence("lost")
    if report.state is WorkerState.REFUSED:
        return reported(report) or _REFUSES
    if report.state is WorkerState.EXITED:
        return _of_exit(report)
    if report.state is WorkerState.READY and elapsed_s > settings.ready_within_s:
        return sentence("not-started", seconds=f"{elapsed_s:.0f}")
    return None


def _exited_by_itself(run: GroupRun, member: WorkerSnapshot) -> bool:
    report = member.report
    return (
        report is not None
        and member.is_in(run.generation, WorkerState.EXITED)
        and report.exit_code != 0
        and not report.stop_requested
    )


_REFUSES = sentence("refuses")


def reported(report: WorkerReport | QuarantineReport) -> Sentence | None:
    """Return the reason in an agent's report of a worker or a node, None if there is none."""
    with suppress(KeyError):  # of a newer version
        if report.reason_sentence is not None and english(report.reason_sentence):
            return report.reason_sentence
    return quoted(report.reason) if report.reason else None


def _from_the_future(report: WorkerReport, run: GroupRun) -> Sentence:
    return sentence("newer-run", reported=str(report.generation), run=str(run.generation))


def _of_exit(report: WorkerReport) -> Sentence:
    if report.stop_requested:
        return reported(report) or sentence("stopped")
    if report.exit_code is None:
        return reported(report) or sentence("ended")
    code = str(report.exit_code)
    reason = reported(report)
    return (
        sentence("exit-reason", exit_code=code, reason=reason) if reason else sentence("exit", exit_code=code)
    )


def _failure(member: WorkerSnapshot, generation: int, cause: Sentence) -> GroupFailure:
    report = member.report
    about = report is not None and report.generation == generation
    return failure_of(
        cause,
        member.worker,
        exit_code=report.exit_code if report and about else None,
        verdict=report.verdict if report and about else "",
        why=report.why if report and about else None,
        line=report.cause_line if report and about else None,
    )


def failure_of(
    cause: Sentence,
    worker: WorkerName | None,
    *,
    exit_code: int | None = None,
    verdict: str = "",
    why: Verdict | None = None,
    line: int | None = None,
) -> GroupFailure:
    """Return the failure that a group stores."""
    return GroupFailure(
        worker=None if worker is None else str(worker),
        text=english(cause),
        code=cause.code,
        values=cause.values,
        exit_code=exit_code,
        verdict=verdict,
        why=why,
        line=line,
    )


def with_silent(failure: GroupFailure, workers: Value) -> GroupFailure:
    """Return a failure with the workers that were silent at the time."""
    silent = failure.but(values={**failure.values, "silent": workers})
    return silent.but(text=english(sentence_of(silent)))


def sentence_of(failure: GroupFailure) -> Sentence:
    """Return why a group failed, without the worker's name."""
    what, silent = Sentence(code=failure.code, values=failure.values), failure.values.get("silent")
    return what if silent is None else sentence("while-silent", what=what, workers=silent)


def whose(failure: GroupFailure) -> Sentence:
    """Return why a group failed, with the name of the first worker that failed."""
    what = sentence_of(failure)
    return sentence("of-worker", worker=failure.worker, what=what) if failure.worker else what
