"""Nodes that no job should use for a while: one file on shared storage, which many nodes write.

Each line is JSON and adds or releases a node; the last line about a node counts. Lines are appended under a
lock, each in one write, and an unreadable line spoils only itself. A file that has grown is compacted.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platform_launch.environment import Environment
from platform_launch.errors import InputError, UnfitNodeError
from platform_launch.events import Event, event
from platform_launch.files import write_all
from platform_launch.text import Phrase, one_line
from platform_launch.values import dataclass

if TYPE_CHECKING:
    from platform_launch.hardware import Gpu
    from platform_launch.health.finding import NodeHealth

FILE_VARIABLE = "PLATFORM_LAUNCH_QUARANTINE"
NODE_NAME_VARIABLE = "PLATFORM_LAUNCH_NODE_NAME"
DEFAULT_S = 24 * 3600.0
_LARGEST_FILE = 4 * 1024 * 1024
# A file that has grown to this is rewritten: one line for each node that is in quarantine.
_COMPACTED_AT = 1024 * 1024
_LONGEST_TEXT = 500
_LOCK_LIMIT_S = 5.0
LAST_MOMENT = 253_402_300_799.0
"""The end of the year 9999."""
_FOR_ALL_WRITERS = 0o664


@dataclass(frozen=True)
class QuarantinedNode:
    """A node in quarantine. Times are seconds since 1970; ``until`` None: until it is released.

    ``sentence`` is the structured form of ``reason``, as JSON; empty if a person gave the reason.
    """

    node: str
    since: float
    until: float | None
    reason: str
    job: str = ""
    gpus: tuple[str, ...] = ()
    sentence: Mapping[str, Any] = field(default_factory=dict)

    def holds_at(self, now: float) -> bool:
        """Whether it still holds at a time."""
        return self.until is None or now < self.until

    def describe(self) -> Phrase:
        """Return the reason and the end."""
        until = Phrase("it is released") if self.until is None else utc(self.until)
        job = Phrase(", found by job {job}", job=self.job) if self.job else ""
        return Phrase("in quarantine until {until}: {reason}{job}", until=until, reason=self.reason, job=job)


def read(
    path: Path, now: float | None = None, report: Callable[[Event], None] | None = None
) -> tuple[QuarantinedNode, ...]:
    """Return the nodes that are in quarantine now, by name; none if there is no file.

    ``report`` is called for unreadable lines, which are skipped. Raises InputError for a file that cannot be
    read.
    """
    try:
        with open(_open(path, os.O_RDONLY), "rb") as file:
            data = file.read(_LARGEST_FILE + 1)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _unusable(path, error) from error
    if len(data) > _LARGEST_FILE:
        raise InputError(
            Phrase(
                "{path} is larger than {size} MiB: expected lines of nodes in quarantine",
                path=path,
                size=_LARGEST_FILE >> 20,
            ),
            "keep the lines that `platform-launch quarantine list` shows, and remove the rest",
        )
    unread: list[int] = []
    found = _in_force(data.decode(errors="replace").splitlines(), time.time() if now is None else now, unread)
    if unread and report is not None:
        more = Phrase(", as {count} more", count=len(unread) - 1) if len(unread) > 1 else ""
        report(event("quarantine-line-unread", path=str(path), number=unread[0], more=more))
    return found


def _in_force(lines: Iterable[str], now: float, unread: list[int]) -> tuple[QuarantinedNode, ...]:
    """Return the nodes that are in quarantine after these lines; collect the unreadable lines."""
    found: dict[str, QuarantinedNode] = {}
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            node = _text(entry["node"])
            if entry["event"] == "released":
                found.pop(node, None)
            elif entry["event"] == "quarantined":
                found[node] = QuarantinedNode(
                    node,
                    _moment(entry["since"]),
                    None if entry.get("until") is None else _moment(entry["until"]),
                    _text(entry.get("reason")),
                    _text(entry.get("job")),
                    tuple(_text(gpu) for gpu in entry.get("gpus") or ()),
                    sentence if isinstance(sentence := entry.get("sentence"), dict) else {},
                )
        except (ValueError, OverflowError, TypeError, KeyError, RecursionError):
            if line.strip():
                unread.append(number)
    return tuple(entry for _, entry in sorted(found.items()) if entry.holds_at(now))


def quarantined(
    entries: Iterable[QuarantinedNode], candidates: Mapping[str, Collection[str]]
) -> dict[str, QuarantinedNode]:
    """Return which of these candidates, node name → UUIDs of its GPUs, are in quarantine.

    A GPU is identified by its UUID, also under another node's name.
    """
    held: dict[str, QuarantinedNode] = {}
    for entry in entries:
        for name, gpus in candidates.items():
            if name == entry.node or not set(gpus).isdisjoint(entry.gpus):
                held.setdefault(name, entry)
    return held


def node_name(env: Environment) -> str:
    """Return the scheduler's name for this machine, which differs from a pod's host name."""
    variable = env.text(NODE_NAME_VARIABLE) or env.text("SLURMD_NODENAME")
    return variable.value if variable is not None and variable.value else env.hostname


def quarantine_file(env: Environment, flag: Path | None) -> Path | None:
    """Return the file that a flag or a variable names."""
    variable = env.text(FILE_VARIABLE)
    return flag or (Path(variable.value) if variable is not None and variable.value else None)


def quarantine_entry(
    file: Path, env: Environment, gpus: Sequence[Gpu], report: Callable[[Event], None] | None = None
) -> QuarantinedNode | None:
    """Return the entry of this node or one of its GPUs, None without one. Raises InputError as read."""
    name = node_name(env)
    entries = read(file, report=report)
    return quarantined(entries, {name: [gpu.uuid for gpu in gpus if gpu.uuid]}).get(name)


def refuse_if_quarantined(
    file: Path | None, env: Environment, gpus: Sequence[Gpu], report: Callable[[Event], None]
) -> None:
    """Raise UnfitNodeError if this node, or one of its GPUs, is in quarantine; InputError as read."""
    if file is None:
        return
    name = node_name(env)
    entry = quarantine_entry(file, env, gpus, report)
    if entry is not None:
        under = Phrase(", under the name {node}", node=entry.node) if entry.node != name else ""
        raise UnfitNodeError(
            Phrase(
                "node {name} is {held}{under} ({file})",
                name=name,
                held=entry.describe(),
                under=under,
                file=file,
            ),
            Phrase(
                "use another node; `platform-launch doctor --release --quarantine {file}` there releases it",
                file=file,
            ),
        )


def quarantine_if_bad(
    file: Path | None, env: Environment, gpus: Sequence[Gpu], health: NodeHealth | None, job: str
) -> Event | None:
    """Put this node in quarantine for a day if it is bad; return the event that reports it."""
    if file is None or health is None or not health.bad:
        return None
    now, name = time.time(), node_name(env)
    uuids = tuple(gpu.uuid for gpu in gpus if f"GPU {gpu.index}" in health.devices)
    reason, sentence = "; ".join(health.reasons), health.sentence().document()
    try:
        add(file, QuarantinedNode(name, now, now + DEFAULT_S, reason, job, uuids, sentence))
    except InputError as error:
        return event("not-quarantined", node_name=name, problem=error.message)
    return event("node-quarantined", node_name=name, until=utc(now + DEFAULT_S), path=str(file))


def add(path: Path, entry: QuarantinedNode) -> None:
    """Put a node in quarantine. Raises InputError."""
    _append(path, {"event": "quarantined", **asdict(entry)})


def release(path: Path, node: str, why: str = "") -> None:
    """Release a node from quarantine. Raises InputError."""
    _append(path, {"event": "released", "node": node, "since": time.time(), "reason": why})


def utc(moment: float) -> str:
    """Return a time for display: ``2026-11-21 04:15 UTC``."""
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _append(path: Path, document: Mapping[str, object]) -> None:
    line = _line(document)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            _lock(descriptor)
            size = os.fstat(descriptor).st_size
            if _COMPACTED_AT < size <= _LARGEST_FILE:
                _compact(path, descriptor, size)
                size = os.fstat(descriptor).st_size
            # The previous writer may have been killed in the middle of a line.
            torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
            write_all(descriptor, b"\n" + line if torn else line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unusable(path, error) from error


def _compact(path: Path, locked: int, size: int) -> None:
    """Leave one line for each node that is in quarantine, in the same file, which others may have open."""
    lines = os.pread(locked, size, 0).decode(errors="replace").splitlines()
    kept = _in_force(lines, time.time(), [])
    data = b"".join(_line({"event": "quarantined", **asdict(entry)}) for entry in kept)
    descriptor = _open(path, os.O_WRONLY)  # not appending
    try:
        if len(data) < size:
            os.pwrite(descriptor, data, 0)
            os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)


def _line(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, default=str).encode() + b"\n"


def _open(path: Path, flags: int) -> int:
    """Open the file, never through a symbolic link, which could make root write elsewhere.

    A link is refused for reading too, so that the user learns it before the job, not when a GPU fails.
    """
    # Do not wait for a pipe in its place.
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, _FOR_ALL_WRITERS)


def _lock(descriptor: int) -> None:
    """Lock the file if its file system can; even without a lock, most file systems append in one piece."""
    deadline = time.monotonic() + _LOCK_LIMIT_S
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return  # noqa: TRY300 - a loop that ends with the lock
        except (BlockingIOError, PermissionError):
            if time.monotonic() >= deadline:
                return
            time.sleep(0.02)
        except OSError:
            return


def _moment(value: Any) -> float:
    """Return a time; one beyond the calendar counts as never."""
    seconds = float(value)
    return seconds if 0 <= seconds <= LAST_MOMENT else LAST_MOMENT


def _text(value: object) -> str:
    return one_line(str(value if value is not None else ""))[:_LONGEST_TEXT]


def _unusable(path: Path, error: OSError) -> InputError:
    problem = Phrase("it is a symbolic link") if error.errno == errno.ELOOP else error.strerror or error
    return InputError(
        Phrase("the quarantine file {path} cannot be used: {problem}", path=path, problem=problem),
        Phrase(
            "name a file on storage that all nodes share, with --quarantine or {variable}",
            variable=FILE_VARIABLE,
        ),
    )
