"""How a launch is concluded: why the training failed, its record, and the last lines."""

from __future__ import annotations

import dataclasses
import io
import select
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from platform_launch.console import Console, in_a_log
from platform_launch.console.languages import event_line
from platform_launch.events import event
from platform_launch.launch.exit_code import left_a_signal_traceback, left_an_exit_barrier
from platform_launch.launch.memory_peak import MemoryPeak
from platform_launch.launch.outcome import Result, beside, ending, tell_outcome
from platform_launch.launch.record import write_record, write_termination_message
from platform_launch.observe.memory import MemoryHeld
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.supervise.signals import ENDING, SignalInbox
from platform_launch.text import Phrase

if TYPE_CHECKING:
    from platform_launch.supervise import Outcome
    from platform_launch.why import Verdict

# To read the log for the first cause: a gigabyte takes seconds, and a disk may hang. The second is what is
# left when a scheduler asks for the end meanwhile.
_WHY_S = 60.0
_WHY_HURRIED_S = 2.0
_RECORD_S = 5.0


def conclude(
    plan: LaunchPlan,
    result: Result,
    verdict: Verdict | None,
    memory: MemoryPeak,
    console: Console,
    started: datetime,
) -> None:
    """Say how it ended and why, and leave it where a person or Kubernetes looks later."""
    happened: list[str] = []
    verdict = beside(verdict, result.run)
    why = verdict.lines() if verdict else []
    if result.run is not None:
        # What the others repeat of this node's log, its own verdict says in full.
        quote = verdict is None or result.first_failed != plan.topology.node_rank
        happened = tell_outcome(result.run, console, quote=quote)
    if verdict is not None:
        console.tell(event("verdict", **verdict.as_dict()), lines=why)
    _close(plan, result, verdict, memory, console, started)
    if result.exit_code:
        write_termination_message("\n".join([*happened, *why]))


def _close(
    plan: LaunchPlan,
    result: Result,
    verdict: Verdict | None,
    memory: MemoryPeak,
    console: Console,
    started: datetime,
) -> None:
    """Say how the training ended, and where to look."""
    outcome = result.outcome
    followed = result.first_failed if result.first_failed != plan.topology.node_rank else None
    ended = ending(outcome, result.exit_code, followed)
    written: list[Path | None] = []
    values = {
        "exit_code": result.exit_code,
        "duration_s": round(outcome.duration_s, 3),
        "first_failed_node": result.first_failed,
        "why": verdict.as_dict() if verdict else None,
        "unwell_nodes": [dataclasses.asdict(node) for node in result.run.unwell] if result.run else [],
        "memory_peak": memory.held.as_dict(),
        "cost": result.cost.as_dict() if result.cost else None,
        **result.saves.as_dict(),
    }
    writing = Thread(target=lambda: written.append(write_record(plan, started, values)), daemon=True)
    with suppress(RuntimeError):  # no thread is left: what this node says at its end matters more
        writing.start()
        writing.join(_RECORD_S)  # a disk that hangs keeps no launch from ending
    record = written[0] if written else None
    if outcome.exit_code == 0 and plan.topology.nnodes > 1 and left_an_exit_barrier(outcome.tail):
        console.tell(event("exit-barrier-left"))
    if outcome.stopped_by is not None and left_a_signal_traceback(outcome.tail):
        console.tell(event("signal-traceback-left"))
    peak = memory.as_event()
    if peak is not None:
        console.tell(peak)
    saved = result.saves.as_event(leads=plan.topology.node_rank == 0)
    if saved is not None:
        console.tell(saved)
    console.tell(ended)
    if result.cost is not None:
        console.tell(event("run-cost", text=result.cost.in_words(), **result.cost.as_dict()))
    if outcome.log_path is not None:
        console.tell(event("log-opened", path=str(outcome.log_path)))
    if record is not None:
        console.tell(event("record-written", path=str(record)))
    console.banner(
        event_line(ended),
        [
            ("job", plan.job_name),
            ("why", verdict.headline() if verdict else ""),
            ("fix", verdict.to_do() if verdict else ""),
            ("memory", _memory_words(memory.held) if peak else ""),
            ("cost", result.cost.in_words() if result.cost else ""),
            ("log", str(outcome.log_path or "")),
            ("record", str(record or "")),
        ],
        ended.level,
    )


def _memory_words(held: MemoryHeld) -> Phrase:
    return Phrase("processes {processes}{gpus}", processes=held.processes, gpus=held.gpus)


def verdict_on(result: Result, plan: LaunchPlan, oom_kills: int | None, inbox: SignalInbox) -> Verdict | None:
    """Ask the log why a training failed here; None where nothing failed, or where another node began it.

    What a node's log says that lost its partner is a consequence, and would stand beside the cause.
    """
    outcome = result.outcome
    if outcome.exit_code == 0 or outcome.stopped_by:
        return None
    if result.run is not None and result.first_failed != plan.topology.node_rank:
        return None
    return _in_time(outcome, oom_kills, inbox)


def _in_time(outcome: Outcome, oom_kills: int | None, inbox: SignalInbox) -> Verdict | None:
    """Read a log, which may be large or on a disk that hangs; None when that takes too long.

    Where there is none, the end of the output is in memory.
    """
    from platform_launch.why import LogSource, explain, explain_file

    def explained() -> Verdict:
        if outcome.log_path is not None:
            # The log holds no end of the launch yet: this is a part of it.
            found = explain_file(outcome.log_path, oom_kills).without_note("no-end")
        else:
            found = explain([LogSource("the end of the output", io.BytesIO(outcome.tail))], oom_kills)
        if found.kind != "nothing":
            return found
        # The training said nothing: how it ended is what is known, and no launcher below it has written that.
        ended = in_a_log(ending(outcome, outcome.exit_code)).encode()
        return explain([LogSource("how it ended", io.BytesIO(ended))], oom_kills)

    found: list[Verdict] = []
    failed: list[Exception] = []

    def read() -> None:
        try:
            found.append(explained())
        except Exception as error:  # raised where it is waited for
            failed.append(error)
        inbox.wake()

    try:
        Thread(target=read, name="why", daemon=True).start()
    except RuntimeError:  # no thread is left
        return None
    deadline = time.monotonic() + _WHY_S
    while not found and not failed and (left_s := deadline - time.monotonic()) > 0:
        select.select([inbox.fd], [], [], left_s)
        if ENDING.intersection(inbox.take()):
            deadline = min(deadline, time.monotonic() + _WHY_HURRIED_S)
    if failed:
        raise failed[0]
    return found[0] if found else None
