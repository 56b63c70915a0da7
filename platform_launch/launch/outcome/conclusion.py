"""The end of a launch: the root cause of a failure, the record next to the log, and the last lines."""

from __future__ import annotations

import dataclasses
import io
import json
import select
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from platform_launch import files
from platform_launch.confidential import masked, masked_arguments
from platform_launch.console import Console, log_line
from platform_launch.events import Event, event
from platform_launch.launch.outcome.exit_code import left_a_signal_traceback, left_an_exit_barrier
from platform_launch.launch.outcome.result import Result, ending, report_outcome, with_devices
from platform_launch.launch.process_watch import MemoryPeak
from platform_launch.launch.stages import versions
from platform_launch.launch.statistics.cost import RunCost
from platform_launch.observe.memory import MemoryHeld
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.project import git_revision
from platform_launch.supervise.signals import ENDING, SignalInbox
from platform_launch.text import Phrase, iso_utc

if TYPE_CHECKING:
    from platform_launch.supervise import Outcome
    from platform_launch.why.answer.verdict import Verdict

# Time to find the root cause in the log: a gigabyte takes seconds, and a disk may hang. The second is the
# time left once a scheduler asks the launcher to stop.
_WHY_S = 60.0
_WHY_HURRIED_S = 2.0
_RECORD_S = 5.0

# Kubernetes shows the content of this file as the reason for a container's end; it keeps 4096 bytes.
_TERMINATION_LOG = Path("/dev/termination-log")
_TERMINATION_BYTES = 4096


def conclude(
    plan: LaunchPlan,
    result: Result,
    verdict: Verdict | None,
    memory: MemoryPeak,
    console: Console,
    started: datetime,
) -> None:
    """Report how the run ended and, last, why; also in the record and in Kubernetes' termination message."""
    verdict = with_devices(verdict, result.run)
    _report_end(plan, result, memory, console)
    happened: list[str] = []
    in_full = plan.topology.node_rank == 0 or result.run is None or result.run.node_0_is_lost
    why = verdict.lines() if verdict else []
    if result.run is not None:
        # The other nodes quote parts of this node's log; its own verdict is complete.
        has_verdict = verdict is not None and result.first_failed == plan.topology.node_rank
        happened = report_outcome(result.run, console, has_verdict=has_verdict, in_full=in_full)
    if verdict is not None:
        shown = verdict.lines(brief=True) if in_full else why[:1]
        console.report(event("verdict", **verdict.as_dict()), lines=why, on_screen=shown)
    record = _record(plan, result, verdict, memory, started)
    if record is not None:
        # After a failure, the root cause stays the last line.
        console.report(event("record-written", path=str(record)), on_screen=() if result.exit_code else None)
    if result.exit_code:
        write_termination_message("\n".join([*happened, *why]))


def _record(
    plan: LaunchPlan, result: Result, verdict: Verdict | None, memory: MemoryPeak, started: datetime
) -> Path | None:
    outcome = result.outcome
    written: list[Path | None] = []
    values = {
        "exit_code": result.exit_code,
        "duration_s": round(outcome.duration_s, 3),
        "first_failed_node": result.first_failed,
        "why": verdict.as_dict() if verdict else None,
        "unwell_nodes": [dataclasses.asdict(node) for node in result.run.unwell] if result.run else [],
        "memory_peak": memory.held.as_dict(),
        "cost": result.cost.as_dict() if result.cost else None,
        "nodes": list(result.nodes),
        **result.saves.as_dict(),
    }
    writing = Thread(target=lambda: written.append(write_record(plan, started, values)), daemon=True)
    with suppress(RuntimeError):  # no thread can be started: the last lines matter more
        writing.start()
        writing.join(_RECORD_S)  # a hanging disk must not keep the launch from ending
    return written[0] if written else None


def _report_end(plan: LaunchPlan, result: Result, memory: MemoryPeak, console: Console) -> None:
    """Report how the processes ended, and where to look."""
    outcome = result.outcome
    followed = result.first_failed if result.first_failed != plan.topology.node_rank else None
    ended = ending(outcome, result.exit_code, followed)
    if outcome.exit_code == 0 and plan.topology.nnodes > 1 and left_an_exit_barrier(outcome.tail):
        console.report(event("exit-barrier-left"))
    if outcome.stopped_by is not None and left_a_signal_traceback(outcome.tail):
        console.report(event("signal-traceback-left"))
    if set(result.nodes) - {plan.topology.launched}:
        console.report(event("nodes-trained", nodes=list(result.nodes)))
    peak = memory.as_event()
    if peak is not None:
        console.report(peak)
    saved = result.saves.as_event(leads=plan.topology.node_rank == 0)
    if saved is not None:
        console.report(saved)
    # On several nodes, the line that names the failed node follows.
    is_named = result.run is not None and result.run.first_failed is not None
    console.report(ended, on_screen=() if is_named else None)
    if result.cost is not None:
        console.report(closing_line(result.cost, memory.held), on_screen=() if result.exit_code else None)
    if outcome.log_path is not None:
        console.report(event("log-written", path=str(outcome.log_path)))


def closing_line(cost: RunCost, held: MemoryHeld) -> Event:
    """Return the event for the time that a run took, and for the memory and the use of its GPUs."""
    text = Phrase("{cost}{gpus}", cost=cost.in_words(), gpus=held.gpus)
    return event("run-cost", text=text, **cost.as_dict())


def verdict_on(result: Result, plan: LaunchPlan, oom_kills: int | None, inbox: SignalInbox) -> Verdict | None:
    """Find out from the log why the processes failed; None if none failed, or if another node failed first.

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
            # This is part of the launch's end, so the log has no end yet.
            found = explain_file(outcome.log_path, oom_kills).without_note("no-end")
        else:
            found = explain([LogSource("the end of the output", io.BytesIO(outcome.tail))], oom_kills)
        if found.kind != "nothing":
            return found
        # The job printed nothing: only how it ended is known, and no launcher below it has printed that.
        ended = log_line(ending(outcome, outcome.exit_code)).encode()
        return explain([LogSource("how it ended", io.BytesIO(ended))], oom_kills)

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


def write_record(plan: LaunchPlan, started: datetime, outcome: Mapping[str, object]) -> Path | None:
    """Write the record of a finished launch; return its path, or None if it cannot be written.

    A record is a convenience: no argument and no disk may make it stop a launch.
    """
    path = plan.log_path.with_suffix(".json")
    document = {
        **_without_secrets(plan.as_dict()),
        "versions": versions(),
        "git_revision": git_revision(plan.training.program.source),
        "started": iso_utc(started),
        "ended": iso_utc(),
        "outcome": outcome,
    }
    try:
        text = json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Bytes that are not UTF-8 become JSON escapes.
        files.write_whole(path, text.encode(errors="backslashreplace"), mode=files.SHARED)
    except (OSError, ValueError):
        return None
    return path


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


def first_failed(records: Iterable[Path]) -> int | None:
    """Return the node that failed first, according to the records of one launch; None if no record has it.

    Nodes that connected agree on it. Without a roll call, it is the node whose processes ran the shortest.
    """
    failed: list[tuple[float, int]] = []
    for record in records:
        with suppress(OSError, ValueError, KeyError, TypeError):  # another launch may be writing there
            outcome = json.loads(record.read_text(encoding="utf-8"))["outcome"]
            failed.append((float(outcome["duration_s"]), int(outcome["first_failed_node"])))
    return min(failed)[1] if failed else None


def write_termination_message(text: str) -> None:
    """Write the reason for a failure to Kubernetes' termination log, which only exists in its containers."""
    with suppress(OSError):
        if _TERMINATION_LOG.exists():
            _TERMINATION_LOG.write_bytes(text.encode(errors="backslashreplace")[:_TERMINATION_BYTES])
