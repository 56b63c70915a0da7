"""The end of a run on this node: its result, the root cause of a failure, the record, and the last lines."""

from __future__ import annotations

import io
import json
import select
import signal
import time
from contextlib import suppress
from dataclasses import asdict, field, replace
from datetime import datetime
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from platform_launch import files
from platform_launch.confidential import masked, masked_arguments
from platform_launch.console import Console, log_line
from platform_launch.events import Event, event, line
from platform_launch.launch.exit_code import left_a_signal_traceback, left_an_exit_barrier
from platform_launch.launch.saves import Saves
from platform_launch.launch.stages import versions
from platform_launch.launch.training_command import NodePlace
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.project import git_revision
from platform_launch.supervise import Outcome
from platform_launch.supervise.signals import ENDING, SignalInbox
from platform_launch.text import Phrase, iso_utc
from platform_launch.values import dataclass

if TYPE_CHECKING:
    from platform_launch.health.finding import NodeHealth
    from platform_launch.launch.cost import RunCost
    from platform_launch.observe.memory import MemoryHeld
    from platform_launch.rendezvous.ending import RunOutcome, UnwellNode
    from platform_launch.why.answer.verdict import Verdict

# Time to find the root cause in the log: a gigabyte takes seconds, and a disk may hang. The second is the
# time left once a scheduler asks the launcher to stop.
_WHY_S = 60.0
_WHY_HURRIED_S = 2.0
_RECORD_S = 5.0

# Kubernetes shows the content of this file as the reason for a container's end; it keeps 4096 bytes.
_TERMINATION_LOG = Path("/dev/termination-log")
_TERMINATION_BYTES = 4096


@dataclass(frozen=True)
class Result:
    """How a run ended on this node.

    ``outcome`` is that of its processes in the last attempt, and ``run`` that of the job, None for a single
    node without devices. ``first_failed`` is the rank of the node that failed first, ``place`` this node's
    place at the end, ``health`` the state of its devices after a failure, and ``saves`` what is known about
    its checkpoints. ``nodes`` is how many nodes took part in each attempt of this node.
    """

    exit_code: int
    outcome: Outcome
    place: NodePlace
    run: RunOutcome | None = None
    first_failed: int | None = None
    health: NodeHealth | None = None
    saves: Saves = field(default_factory=Saves)
    nodes: tuple[int, ...] = ()


class SpareNotNeededError(Exception):
    """The job has ended, and this spare took no part in it."""

    def __init__(self, outcome: RunOutcome) -> None:
        super().__init__()
        self.outcome = outcome


def was_failure(outcome: Outcome) -> bool:
    """Return whether processes failed, here or elsewhere, rather than being asked to stop."""
    return outcome.exit_code != 0 and outcome.stopped_by not in signal.Signals.__members__


def verdict_on(result: Result, plan: LaunchPlan, oom_kills: int | None, inbox: SignalInbox) -> Verdict | None:
    """Return from the log why the processes failed; None if none failed, or if another node failed first.

    The log of a node that lost its peer only shows a consequence, which must not compete with the cause.
    """
    outcome = result.outcome
    if outcome.exit_code == 0 or outcome.stopped_by:
        return None
    if result.run is not None and result.first_failed != plan.topology.node_rank:
        return None
    return _in_time(outcome, oom_kills, inbox)


def _in_time(outcome: Outcome, oom_kills: int | None, inbox: SignalInbox) -> Verdict | None:
    """Explain a log, which may be large or on a hanging disk; None if that takes too long.

    Without a log, the end of the output in memory is explained.
    """
    from platform_launch.why.explaining import explain, explain_file
    from platform_launch.why.sources import LogSource

    def explained() -> Verdict:
        if outcome.log_path is not None:
            # This is part of the launch's end, so the log is not complete yet.
            found = explain_file(outcome.log_path, oom_kills).without_note("no-end")
        else:
            found = explain([LogSource("the end of the output", io.BytesIO(outcome.tail))], oom_kills)
        if found.kind != "nothing":
            return found
        # The job printed nothing: only how it ended is known, and no launcher below it has printed that.
        return explain_end(end_event(outcome, outcome.exit_code), oom_kills)

    found: list[Verdict] = []
    failed: list[Exception] = []

    def read() -> None:
        try:
            found.append(explained())
        except Exception as error:  # raised by the waiting thread
            failed.append(error)
        inbox.wake()

    try:
        Thread(target=read, name="why", daemon=True).start()
    except RuntimeError:  # no thread can be started
        return None
    deadline = time.monotonic() + _WHY_S
    while not found and not failed and (left_s := deadline - time.monotonic()) > 0:
        select.select([inbox.fd], [], [], left_s)
        if ENDING.intersection(inbox.receive()):
            deadline = min(deadline, time.monotonic() + _WHY_HURRIED_S)
    if failed:
        raise failed[0]
    return found[0] if found else None


def conclude(
    plan: LaunchPlan,
    result: Result,
    verdict: Verdict | None,
    cost: RunCost,
    held: MemoryHeld,
    console: Console,
    started: datetime,
) -> None:
    """Report how the run ended and, last, why; also in the record and in Kubernetes' termination message."""
    verdict = with_devices(verdict, result.run)
    _report_end(plan, result, cost, held, console)
    outcome_lines: list[str] = []
    in_full = plan.topology.node_rank == 0 or result.run is None or result.run.node_0_is_lost
    why = verdict.lines() if verdict else []
    if result.run is not None:
        # The other nodes quote parts of this node's log; its own verdict is complete.
        has_verdict = verdict is not None and result.first_failed == plan.topology.node_rank
        outcome_lines = report_outcome(result.run, console, has_verdict=has_verdict, in_full=in_full)
    if verdict is not None:
        shown = verdict.lines(brief=True) if in_full else why[:1]
        console.report(event("verdict", **verdict.as_dict()), lines=why, on_screen=shown)
    record = _write_record(plan, result, verdict, cost, held, started)
    if record is not None:
        # After a failure, the root cause stays the last line.
        console.report(event("record-written", path=str(record)), on_screen=() if result.exit_code else None)
    if result.exit_code:
        _write_termination_message("\n".join([*outcome_lines, *why]))


def _report_end(plan: LaunchPlan, result: Result, cost: RunCost, held: MemoryHeld, console: Console) -> None:
    """Report how the processes ended, and where to look."""
    outcome = result.outcome
    followed = result.first_failed if result.first_failed != plan.topology.node_rank else None
    ended = end_event(outcome, result.exit_code, followed)
    if outcome.exit_code == 0 and plan.topology.nnodes > 1 and left_an_exit_barrier(outcome.tail):
        console.report(event("exit-barrier-left"))
    if outcome.stopped_by is not None and left_a_signal_traceback(outcome.tail):
        console.report(event("signal-traceback-left"))
    if set(result.nodes) - {plan.topology.launched}:
        console.report(event("nodes-trained", nodes=list(result.nodes)))
    if held:
        console.report(peak_event(held))
    saved = result.saves.as_event(leads=plan.topology.node_rank == 0)
    if saved is not None:
        console.report(saved)
    # On several nodes, the line that names the failed node follows.
    is_named = result.run is not None and result.run.first_failed is not None
    console.report(ended, on_screen=() if is_named else None)
    console.report(closing_line(cost, held), on_screen=() if result.exit_code else None)
    if outcome.log_path is not None:
        console.report(event("log-written", path=str(outcome.log_path)))


def end_event(outcome: Outcome, exit_code: int, followed: int | None = None) -> Event:
    """Return the event for the end of the processes. ``followed`` is the other node that failed, if any.

    ``exit_code`` is the launch's: the code of stopped processes only shows which signal they got.
    """
    values: dict[str, object] = {
        "exit_code": outcome.exit_code if outcome.stopped_by is None else exit_code,
        "duration_s": round(outcome.duration_s, 3),
    }
    if values["exit_code"] == 0:
        return event("training-finished", **values)
    if outcome.stopped_by is not None and followed is not None:
        return event("training-followed", node=followed, **values)
    if outcome.stopped_by is not None:
        return event("training-stopped", reason=outcome.stopped_by, **values)
    if outcome.signal is not None:
        return event("training-killed", signal=outcome.signal, **values)
    return event("training-failed", **values)


def explain_end(ended: Event, oom_kills: int | None) -> Verdict:
    """Explain how the processes ended, for output that shows nothing."""
    from platform_launch.why.explaining import explain
    from platform_launch.why.sources import LogSource

    return explain([LogSource("how it ended", io.BytesIO(log_line(ended).encode()))], oom_kills)


def peak_event(held: MemoryHeld) -> Event:
    """Return the event for the peak memory of this node's processes and GPUs."""
    return event("memory-peak", **held.as_dict(), processes=held.processes, gpus=held.gpus)


def closing_line(cost: RunCost, held: MemoryHeld) -> Event:
    """Return the event for the time that a run took, and for the memory and the use of its GPUs."""
    text = Phrase("{cost}{gpus}", cost=cost.describe(), gpus=held.gpus)
    return event("run-cost", text=text, **cost.as_dict())


def report_outcome(
    run: RunOutcome, console: Console, *, has_verdict: bool = False, in_full: bool = True
) -> list[str]:
    """Report how the run ended for all nodes, unless every node finished; return the lines.

    The cause in the failed node's log is repeated unless this node has its own verdict (``has_verdict``).
    Without ``in_full``, a quiet screen leaves the cause to node 0.
    """
    from platform_launch.rendezvous.ending import ending_event, quote_event
    from platform_launch.rendezvous.restarts import NotAgainKind, describe_not_again

    events: list[tuple[Event, list[str]]] = []
    if run.ending is not None:
        events.append((ending_event(run.ending), []))
    events += [(_unwell(node), []) for node in run.unwell]
    if run.well and not run.stopped:
        events.append((event("nodes-well", nodes=run.well), []))
    not_again = run.not_again
    if events and not_again is not None and not_again.kind is not NotAgainKind.NOT_ASKED_FOR:
        values = {"kind": not_again.kind.value, "max_restarts": not_again.max_restarts}
        events.append((event("not-restarted", reason=describe_not_again(not_again), **values), []))
    quoted = quote_event(run.ending) if run.ending is not None and not has_verdict else None
    if quoted is not None:  # last: it has the root cause
        events.append(quoted)
    for number, (one, lines) in enumerate(events):
        of_node_0 = number > 0 or has_verdict
        console.report(one, lines, on_screen=() if of_node_0 and not in_full else None)
    return [text for one, lines in events for text in lines or [line(one)]]


def _unwell(node: UnwellNode) -> Event:
    return event(
        "node-bad" if node.bad else "node-suspect",
        node=node.node_rank,
        host=node.host,
        grade=node.health.grade.value,
        reasons=list(node.health.reasons),
    )


def with_devices(verdict: Verdict | None, run: RunOutcome | None) -> Verdict | None:
    """Return the verdict on the log, corrected by the devices: a bad node overrides the log."""
    bad = [node for node in (run.unwell if run is not None else ()) if node.bad]
    if verdict is None or not bad:
        return verdict
    reason = Phrase(
        "node {rank} ({host}) is bad: {reason}",
        rank=bad[0].node_rank,
        host=bad[0].host,
        reason=bad[0].health.reasons[0],
    )
    return replace(verdict, retry="another_node", retry_reason=reason)


def _write_record(
    plan: LaunchPlan,
    result: Result,
    verdict: Verdict | None,
    cost: RunCost,
    held: MemoryHeld,
    started: datetime,
) -> Path | None:
    """Write the record of a finished launch; return its path, or None if it cannot be written in time.

    A record is optional: neither an argument nor a disk may make it stop a launch.
    """
    outcome = {
        "exit_code": result.exit_code,
        "duration_s": round(result.outcome.duration_s, 3),
        "first_failed_node": result.first_failed,
        "why": verdict.as_dict() if verdict else None,
        "unwell_nodes": [asdict(node) for node in result.run.unwell] if result.run else [],
        "memory_peak": held.as_dict(),
        "cost": cost.as_dict(),
        "nodes": list(result.nodes),
        **result.saves.as_dict(),
    }
    path, written = plan.log_path.with_suffix(".json"), False

    def write() -> None:
        nonlocal written
        with suppress(OSError, ValueError):
            record = {
                **_without_secrets(plan.as_dict()),
                "versions": versions(),
                "git_revision": git_revision(plan.training.program.source),
                "started": iso_utc(started),
                "ended": iso_utc(),
                "outcome": outcome,
            }
            text = json.dumps(record, indent=2, ensure_ascii=False, default=str) + "\n"
            path.parent.mkdir(parents=True, exist_ok=True)
            # Bytes that are not UTF-8 become JSON escapes.
            files.write_whole(path, text.encode(errors="backslashreplace"), mode=files.SHARED)
            written = True

    writing = Thread(target=write, daemon=True)
    with suppress(RuntimeError):  # no thread can be started: the last lines matter more
        writing.start()
        writing.join(_RECORD_S)  # a hanging disk must not keep the launch from ending
    return path if written else None


def _without_secrets(plan: dict[str, Any]) -> dict[str, Any]:
    """Mask what looks like a secret: other users may read a record."""
    variables = {
        group: [{**one, "value": masked(one["name"], one["value"])} for one in plan[group]]
        for group in ("env", "kept")
    }
    program = {**plan["training"]["program"]}
    program["arguments"] = masked_arguments(program["arguments"])
    training = {**plan["training"], "program": program}
    return {**plan, **variables, "training": training, "argv": masked_arguments(plan["argv"])}


def _write_termination_message(text: str) -> None:
    """Write the reason for a failure to Kubernetes' termination log, which only exists in its containers."""
    with suppress(OSError):
        if _TERMINATION_LOG.exists():
            _TERMINATION_LOG.write_bytes(text.encode(errors="backslashreplace")[:_TERMINATION_BYTES])
