"""What the launcher reports, as values: an event has an id and fields, and becomes a line for people.

    Event      one thing that was said                    CATALOGUE  every id: its level and its line
    line       event → the line for people                mark       event → `` [id key=value]``, a line's end
    as_json    event → a line of ``*.events.jsonl``       read       such a file → events

No program may depend on the words of a line: it reads the event file, or the mark where only text is left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from platform_launch.text import Phrase, joined, one_line, seconds
from platform_launch.values import dataclass

SUFFIX = ".events.jsonl"
LEVELS = ("INFO", "SUCCESS", "WARN", "ERROR")

_LARGEST_FILE = 16 * 1024 * 1024
_NOTHING: Mapping[str, object] = MappingProxyType({})
_MARKED = re.compile(r" ?\[(?P<id>[a-z][a-z0-9]*(?:-[a-z0-9]+)*)(?P<fields>(?: [a-z_]+=[\w.:+-]+)*)\]\s*\Z")
_SAID_BY_US = re.compile(r"(?:\d\d:\d\d:\d\d )?(?:\[(?P<level>INFO|SUCCESS|WARN|ERROR)\] |error: |错误：)")
_IN_A_MARK = re.compile(r"[\w.:+-]+")


@dataclass(frozen=True)
class Event:
    """One report. ``where`` names the variable, file, device or node that it is about, if any.

    ``fields`` are JSON values. ``node_rank`` and ``time`` (UTC, ISO 8601) are set for events that were read.
    """

    id: str
    level: str
    where: str = ""
    fields: Mapping[str, object] = field(default_factory=dict)
    node_rank: int | None = None
    time: str = ""


class Kind(NamedTuple):
    """An entry of the catalogue: the level, the line for people, and the fields in its mark."""

    level: str
    template: str
    marked: tuple[str, ...] = ()


# The wording of a line may change; programs read ids, levels and fields.
CATALOGUE: dict[str, Kind] = {
    # A launch, from its opening to its end.
    "launch-opened": Kind(
        "INFO",
        "platform_launch {version}: node {node_rank} of {nnodes}, job {job}: host {host}, GPUs: {gpus}; "
        "{launcher} {program}; master {master}",
    ),
    "log-opened": Kind("INFO", "log: {path}"),
    "log-written": Kind("INFO", "log: {path}"),
    "launch-refused": Kind("ERROR", "{message}"),
    "no-line-matches": Kind("INFO", "no line matches"),
    "training-finished": Kind("SUCCESS", "training finished after {duration}"),
    "exit-barrier-left": Kind(
        "INFO",
        (
            "torchrun's errors about its exit barrier above are harmless: another node finished a "
            "moment earlier"
        ),
    ),
    "signal-traceback-left": Kind(
        "INFO",
        "the SignalException traceback above is expected: torchrun prints it when it is asked to stop",
    ),
    "training-failed": Kind(
        "ERROR", "training ended with exit code {exit_code} after {duration}", ("exit_code",)
    ),
    "training-reason": Kind("ERROR", "the script gave a reason for its exit: {reason}", ("exit_code",)),
    "training-killed": Kind(
        "ERROR",
        "training was killed by {signal} after {duration} (exit code {exit_code})",
        ("signal", "exit_code"),
    ),
    "training-stopped": Kind(
        "WARN",
        "training was stopped after {duration} ({reason}); exit code {exit_code}",
        ("exit_code",),
    ),
    "checkpoint-saved": Kind(
        "SUCCESS", "a checkpoint was written after {signal}, {age} before the end: {path}", ("signal", "step")
    ),
    "checkpoint-unfinished": Kind(
        "WARN",
        (
            "the grace period ended while {path} was being written, so it may be incomplete. Pass a "
            "longer --grace-period"
        ),
        ("signal", "step"),
    ),
    "checkpoint-not-saved": Kind(
        "WARN",
        "no new checkpoint was found after {signal}; the last one is {age} old: {path}",
        ("signal", "step"),
    ),
    "checkpoint-missing": Kind("WARN", "no checkpoint was found after {signal}", ("signal",)),
    "node-taken-away": Kind(
        "WARN",
        ("{source} will take this node away {left}: asking ranks that handle {signal} to save"),
        ("source",),
    ),
    "save-exceeds-grace": Kind(
        "WARN",
        (
            "the last checkpoint took {took}, but the grace period is {grace}: a save after a stop "
            "request would be cut off. Pass --grace-period {wanted}, and let the scheduler wait "
            "longer than that"
        ),
        ("took_s", "grace_s"),
    ),
    "training-followed": Kind(
        "WARN", "training was stopped after {duration}, because node {node} failed", ("node", "exit_code")
    ),
    "memory-peak": Kind("INFO", "peak memory: processes {processes}{gpus}"),
    "binding-verified": Kind("INFO", "the ranks of this node run on the CPUs they were bound to"),
    "binding-undone": Kind(
        "WARN",
        (
            "local rank {local_rank} was bound to CPUs {wanted} but runs on {found}: the script or a "
            "library has changed it (use --bind none to leave binding to them)"
        ),
    ),
    "run-cost": Kind("INFO", "summary: {text}"),
    "metrics-served": Kind("INFO", "metrics: http://{host}:{port}/metrics"),
    "metrics-not-served": Kind("WARN", "no metrics at {host}:{port}: {problem}; the job continues"),
    "trainjob-status-refused": Kind("WARN", "the TrainJob's status was not updated: {problem}"),
    "nodes-trained": Kind("INFO", "nodes that trained, in each attempt: {nodes}"),
    "record-written": Kind("INFO", "launch record: {path}"),
    "verdict": Kind("ERROR", "{text}"),
    # A job without progress.
    "no-progress": Kind("WARN", "no progress for {still_s:.0f} s: {headline}", ("kind", "ranks")),
    "no-progress-detail": Kind("WARN", "{text}"),
    "slow-but-working": Kind(
        "INFO", "no step for {still_s:.0f} s, but not a hang: {headline}", ("kind", "ranks")
    ),
    "slow-but-working-detail": Kind("INFO", "{text}"),
    # A job that continues, but more slowly than it could.
    "slow-rank": Kind("INFO", "slow: {headline}", ("ranks",)),
    "slow-rank-over": Kind("INFO", "no longer slow: {headline}", ("ranks",)),
    "slower-than-before": Kind("INFO", "slower than before: {headline}"),
    "as-fast-as-before": Kind("INFO", "as fast as before: {headline}"),
    "progress-again": Kind("INFO", "the job continues after {still_s:.0f} s without progress"),
    "hang-recorded": Kind("INFO", "what all ranks were doing: {path}"),
    "hang-ends-training": Kind("ERROR", "the job hangs; stopping it (--on-hang {on_hang})", ("on_hang",)),
    # Devices; their problems are reported under the ids of the findings.
    "device-well-again": Kind("INFO", "{where}: cleared after {after_s:.0f} s: {what}", ("finding",)),
    "devices-not-watched": Kind("WARN", "GPUs and ports are not watched: {problem}"),
    "xids-not-heard": Kind("INFO", "the driver does not report XIDs here: {problem}"),
    "ranks-left": Kind(
        "WARN",
        "{who} had already ended without an error when others failed waiting for it",
        ("ranks",),
    ),
    "node-bad": Kind("ERROR", "node {node} ({host}) is bad, use another: {reasons}", ("node", "grade")),
    "node-suspect": Kind("WARN", "node {node} ({host}) is suspect: {reasons}", ("node", "grade")),
    "node-quarantined": Kind("WARN", "node {node_name} is in quarantine until {until} ({path})"),
    "not-quarantined": Kind("WARN", "node {node_name} could not be put in quarantine: {problem}"),
    "quarantine-line-unread": Kind(
        "WARN",
        ("{path}, line {number}{more}, is skipped: expected a JSON object with node, event and since"),
    ),
    "nodes-well": Kind("INFO", "GPUs and ports are healthy on all nodes of the job ({nodes})"),
    "not-observed": Kind("WARN", "hangs cannot be detected: {problem}"),
    # Processes that are left.
    "end-asked": Kind("INFO", "{reason}: stopping {what}, SIGKILL in {grace_s:g} s{again}", ("signal",)),
    "leftovers-asked": Kind("WARN", "stopping processes left behind by {what}: {processes}"),
    "overdue-killed": Kind(
        "WARN", "killing processes of {what} that did not stop within {limit_s:g} s: {processes}"
    ),
    "leftovers-killed": Kind("WARN", "killing leftover processes of {what}: {processes}"),
    "process-stuck": Kind(
        "ERROR", ("still alive {limit_s:g} s after SIGKILL, stuck in a driver or file system: {processes}")
    ),
    # What the screen shows instead of a traceback; the log has all of it.
    "traceback-folded": Kind(
        "INFO", "{package} raised {exception} because a rank failed; the log has all {lines} lines"
    ),
    "traceback-repeated": Kind("INFO", "rank {ranks}: the same traceback as rank {first}{difference}"),
    "traceback-again": Kind("INFO", "the same traceback again ({count}×){difference}"),
    "output-lost": Kind("WARN", "output can no longer be written: {problem}; {consequence}"),
    "exit-blocked": Kind(
        "WARN",
        "this process cannot exit until a file system that it writes to responds again",
    ),
    "log-lost": Kind(
        "WARN", ("cannot write the log any more: {path}: {problem}; the job continues without it")
    ),
    "log-cut": Kind("INFO", "{left_out_mib:g} MiB omitted from the log here (--log-limit)"),
    # The nodes of a job: their roll call, and how it ended on one of them.
    "roll-call-opened": Kind(
        "INFO",
        "roll call: waiting at most {limit_s:g} s for {nnodes} nodes at {master_addr}:{port}",
    ),
    "roll-call-skipped": Kind("INFO", "starting training without waiting for the other nodes"),
    "nodes-differ": Kind("WARN", "nodes differ: {difference}"),
    "roll-call-complete": Kind("SUCCESS", "roll call: {nodes}; starting training"),
    "spare-waits": Kind("INFO", "this node is a spare: it waits until another node is lost"),
    "spare-stands-in": Kind("WARN", "this spare, node {spare}, now replaces node {node}", ("node", "spare")),
    "rank-reordered": Kind(
        "INFO", "this node started as node {spare} and is now node {node}", ("node", "spare")
    ),
    "fewer-nodes": Kind(
        "WARN", "the job continues with {nodes} of {nnodes} nodes: {batch}", ("nodes", "nnodes")
    ),
    "job-moved": Kind("WARN", "the job has moved: node 0 is now on {host} (before: {before})"),
    "job-stays": Kind(
        "WARN", ("node 0 is lost and the job cannot move: {reason}; waiting at most {limit_s:g} s for node 0")
    ),
    "spare-not-needed": Kind("INFO", "the job has ended; this spare was not needed"),
    "node-left-out": Kind("WARN", "this node leaves the job, which continues without it"),
    "refusal-told": Kind("INFO", "reporting this to the other nodes, for up to {limit_s:g} s"),
    "launch-left": Kind("WARN", "{signal}: exiting", ("signal",)),
    "nodes-restart": Kind(
        "WARN", "restart {restart} of {max_restarts}: the nodes connect again", ("restart",)
    ),
    "port-given-up": Kind(
        "WARN",
        (
            "the job needed a port that is in use, perhaps {port}, on which the nodes connect: "
            "restarting it, with another port for the nodes"
        ),
    ),
    "node-restarts": Kind("WARN", "restart {restart} of {max_restarts}", ("restart",)),
    "not-restarted": Kind("ERROR", "not restarted: {reason}"),
    "node-finished": Kind("INFO", "node {node} ({host}) has finished", ("node",)),
    "node-failed": Kind(
        "ERROR",
        "node {node}, {host}: the training ended with exit code {exit_code}",
        ("node", "exit_code"),
    ),
    "node-stopped": Kind("WARN", "node {node} ({host}) was asked to stop ({signal})", ("node", "signal")),
    "node-vanished": Kind(
        "ERROR", "lost {nodes} ({hosts}): no heartbeat for {silent_s:.0f} s{remark}", ("node",)
    ),
    "node-started-anew": Kind(
        "ERROR", "node {node} was restarted on {host}: its part of the job was lost", ("node",)
    ),
    "launcher-killed": Kind("ERROR", "{nodes} ({hosts}): the launcher was killed{remark}", ("node",)),
    "launcher-silent": Kind(
        "ERROR",
        ("node {node} ({host}): the launcher is stopped or stuck, no heartbeat for {silent_s:.0f} s"),
        ("node",),
    ),
    "coordinator-gone": Kind("ERROR", "node 0 ({host}) no longer hosts the rendezvous"),
    "coordinator-silent": Kind("ERROR", "node 0 ({host}) has not answered for {silent_s:.0f} s"),
    "node-hung": Kind("ERROR", "the job hung on node {node} ({host}) and was stopped (--on-hang)", ("node",)),
    "node-left-early": Kind(
        "ERROR",
        ("node {node}, {host}: ranks exited early there, and the others then lost their connections to them"),
        ("node",),
    ),
    "node-quoted": Kind("ERROR", "  | {lines}", ("node",)),
    # Runs on several nodes from one of them.
    "nodes-run-finished": Kind("SUCCESS", "succeeded on {nodes} of {nnodes} nodes after {duration}"),
    "nodes-run-stopped": Kind("WARN", "stopped after {duration}; exit code {exit_code}", ("exit_code",)),
    "nodes-run-failed": Kind(
        "ERROR", "failed after {duration}; first on {first_failed}; exit code {exit_code}", ("exit_code",)
    ),
    # Simulations on one machine.
    "gpus-not-split": Kind(
        "WARN", "GPUs ({gpus}) cannot be split among {nodes} nodes: simulating on the CPU"
    ),
    "simulation-finished": Kind(
        "SUCCESS", "{finished} of {nodes} nodes finished after {duration}; logs: {logs}"
    ),
    "simulated-node-lost": Kind("WARN", "{what}: the others continue without it"),
    "simulated-node-failed": Kind("ERROR", "node {node} failed first; its log: {log}", ("node",)),
}

# Events that go only to the log, unless the screen is a terminal.
DETAILS = frozenset(
    {
        "log-written",
        "record-written",
        "memory-peak",
        "roll-call-opened",
        "binding-verified",
    }
)
# On such a screen only node 0 reports these.
OF_NODE_0 = frozenset(
    {
        *("log-opened", "roll-call-complete", "run-cost"),
        # Every node knows these; node 0 detects them.
        *("no-progress", "no-progress-detail", "hang-recorded", "progress-again"),
        *("slow-but-working", "slow-but-working-detail", "slow-rank", "slow-rank-over"),
        *("slower-than-before", "as-fast-as-before"),
    }
)


def is_for_every_screen(event: Event, node_rank: int) -> bool:
    """Return whether an event belongs in a pipe or a platform's log, which has no live reader."""
    if event.id == "end-asked":  # without a signal it follows from what another node reported
        return bool(event.fields.get("signal"))
    return event.id not in DETAILS and (node_rank == 0 or event.id not in OF_NODE_0)


def event(event_id: str, /, **fields: object) -> Event:
    """Return an event of the catalogue."""
    return Event(event_id, CATALOGUE[event_id].level, fields=fields)


def line(event: Event) -> str:
    """Return the line for people in English."""
    return one_line(message(event))


def message(event: Event) -> Phrase:
    """Return the line for people as a message. A finding is not in the catalogue and has its own text."""
    kind = CATALOGUE.get(event.id)
    if kind is None:
        words = (event.fields.get(name) for name in ("what", "hint"))
        return joined((Phrase.of(one) for one in words if isinstance(one, str) and one), "; ")
    fields = {name: _value(value) for name, value in event.fields.items()}
    if isinstance(lasted := event.fields.get("duration_s"), int | float):
        fields["duration"] = seconds(lasted)
    try:
        return Phrase.checked(kind.template, fields)
    except (KeyError, ValueError, IndexError):  # a field is missing: show what there is
        return Phrase("{id}: {fields}", id=event.id, fields=fields)


def _value(value: object) -> object:
    return joined(value) if isinstance(value, list | tuple) else value


def mark(event: Event) -> str:
    """Return the mark at the end of the event's line, for programs: ``[id key=value]``."""
    kind = CATALOGUE.get(event.id)
    values = {name: str(event.fields.get(name, "")) for name in (kind.marked if kind else ())}
    fields = [f"{name}={value}" for name, value in values.items() if _IN_A_MARK.fullmatch(value)]
    return f"[{' '.join([event.id, *fields])}]"


def marked(text: str) -> tuple[str, Event] | None:
    """Split a line with a mark: its text, and the event with the fields of the mark (as text).

    None for any other line. ``text`` excludes any prefix before the launcher's own part of the line.
    """
    opening = _SAID_BY_US.match(text)
    found = _MARKED.search(text) if opening is not None else None
    if opening is None or found is None:
        return None
    fields = dict(pair.split("=", 1) for pair in found["fields"].split())
    found_event = Event(found["id"], opening["level"] or "ERROR", fields=fields)
    return text[opening.end() : found.start()], found_event


def in_text(event: Event) -> str:
    """Return the event as the end of a line in a log: level, text and mark."""
    return f"[{event.level}] {line(event)} {mark(event)}"


def as_json(event: Event, node_rank: int) -> bytes:
    """Return the event's line in an event file, with the current time."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    document = {"time": now, "node_rank": node_rank, "id": event.id, "level": event.level}
    if event.where:
        document["where"] = event.where
    document["fields"] = dict(event.fields)
    return json.dumps(document, default=str).encode() + b"\n"


def beside(log: Path) -> Path:
    """Return the event file of a launch, which is next to its log."""
    return log.with_suffix(SUFFIX)


def read(path: Path) -> list[Event] | None:
    """Read an event file; None if it cannot be read. Lines that are not events are skipped."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_FILE:
            return None
        lines = path.read_bytes().splitlines()
    except OSError:
        return None
    found = (_event(data) for data in lines)
    return [event for event in found if event is not None]


def _event(data: bytes) -> Event | None:
    try:
        document: dict[str, Any] = json.loads(data)
        known = {name: document[name] for name in ("id", "level", "fields", "time")}
        rank, where = document["node_rank"], document.get("where", "")
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    texts = (known["id"], known["level"], known["time"], where)
    if not all(isinstance(text, str) for text in texts) or known["level"] not in LEVELS:
        return None
    if not isinstance(known["fields"], dict) or not isinstance(rank, int):
        return None
    return Event(**known, where=where, node_rank=rank)
