"""The last reports of agents, in memory only because they are repeated, and the server's time.

Heartbeats write it without a lock. Each field is replaced as a whole, so a reader in another thread sees
either the old value or the new one. A :class:`WorkerSnapshot` is a worker at one moment, the basis of
decisions about groups; a :class:`WorkerGlance` is its brief form for lists.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import NamedTuple

from platform_launch.errors import UnfitNodeError
from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.refused import NotFound
from platform_launch.procguard.api.shapes import Shape
from platform_launch.procguard.api.shapes.groups import GroupPhase
from platform_launch.procguard.api.shapes.workers import WorkerStatus
from platform_launch.procguard.api.wire import (
    ForeignGpuProcess,
    GpuReport,
    Heartbeat,
    JoinRequest,
    MachineReport,
    QuarantineReport,
    WorkerReport,
    WorkerState,
)
from platform_launch.procguard.core.group import Group


def utc_now() -> datetime:
    """Return the wall-clock time, for display."""
    return datetime.now(timezone.utc)


@dataclass(frozen=True)
class Moment:
    """A time of the monotonic clock, and since when the server had been listening then."""

    clock_s: float
    listening_since: float

    def silent_s(self, seen_at: float | None) -> float:
        """Return the time since a heartbeat, counted at most from when the server began to listen."""
        return self.clock_s - max(seen_at or self.listening_since, self.listening_since)


class ServerClock:
    """``clock`` is monotonic and used for every decision; ``now`` is only for display.

    On the monotonic clock, a group enters its phase when this server first sees it there.
    """

    now = staticmethod(utc_now)

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock_s = clock
        self.listening_since = clock()
        self._phases: dict[str, tuple[GroupPhase, datetime, float]] = {}

    def moment(self) -> Moment:
        """Return the current moment."""
        return Moment(self.clock_s(), self.listening_since)

    def in_phase_s(self, group: Group) -> float:
        """Return how long a group has been in its phase; 0 if :meth:`enter` has not seen it there."""
        known = self._phases.get(group.name)
        if known is None or known[:2] != (group.phase, group.phase_since):
            return 0.0
        return self.clock_s() - known[2]

    def enter(self, group: Group) -> None:
        """Record the phase of a group. Only writers call this: what others read may be outdated."""
        known = self._phases.get(group.name)
        if known is None or known[:2] != (group.phase, group.phase_since):
            self._phases[group.name] = (group.phase, group.phase_since, self.clock_s())

    def forget(self, group: str) -> None:
        """Forget a group."""
        self._phases.pop(group, None)


class WorkerSnapshot(NamedTuple):
    """A worker at one moment. Thousands are made every second.

    ``report`` is the last one, None if there was none since the server started; ``same`` counts heartbeats in
    a row with the same state. ``silent_s`` counts from the last heartbeat, or from when the server began to
    listen. ``ended_at`` is when the reported run ended, on the server's monotonic clock. ``generation`` is
    the highest this worker ever had. ``names`` (host name and addresses), ``command`` (for groups that set
    none) and ``labels`` are its agent's; ``drained``, ``quarantined`` and ``gpu_processes`` (of other users)
    are its node's.
    """

    worker: WorkerName
    report: WorkerReport | None = None
    same: int = 0
    silent_s: float = 0.0
    ended_at: float | None = None
    generation: int = 0
    names: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    drained: bool = False
    quarantined: bool = False
    gpu_processes: tuple[ForeignGpuProcess, ...] = ()

    @property
    def gpus_held(self) -> list[ForeignGpuProcess]:
        """Return the processes of other users on this worker's GPUs."""
        mine = {gpu.index for gpu in self.report.gpus} if self.report else set()
        return [process for process in self.gpu_processes if process.gpu in mine]

    @property
    def busy(self) -> bool:
        """Whether it reports a process."""
        return self.report is not None and self.report.state in (WorkerState.RUNNING, WorkerState.STOPPING)

    @property
    def unfit(self) -> bool:
        """Whether its launcher exited because a device of the node has failed."""
        return self.report is not None and self.report.exit_code == UnfitNodeError.exit_code

    def is_in(self, generation: int, *states: WorkerState) -> bool:
        """Return whether it reports one of these states for this generation."""
        report = self.report
        return report is not None and report.generation == generation and report.state in states


Members = Mapping[WorkerName, WorkerSnapshot]
"""The workers of a group, all at the same moment."""


DEFAULT_SILENT_AFTER_S = 15.0
"""For workers in no group, and before a second installation may take over a node's name."""

_NUMBERS = re.compile(r"(\d{1,18})")


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a key for natural order: gn7 before gn39."""
    parts = _NUMBERS.split(name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)


class NodeRecord(Shape):
    """A node as it is stored: its agent's join request, and the hash of its credential."""

    join: JoinRequest
    credential_sha256: str
    drained_by: str = ""
    """The user who drained it; empty if it is not drained."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.join.node

    @cached_property
    def order(self) -> tuple[tuple[int, str], ...]:
        """Return the key for natural order by name."""
        return natural(self.name)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return all its names and addresses."""
        host = self.join.hostname
        return tuple(name for name in (host, host.split(".", 1)[0], *self.join.addresses) if name)


@dataclass
class WorkerEntry:
    """One worker and its last report.

    ``seen_at`` is the time of its last heartbeat on the server's monotonic clock. ``ended_at`` is when its
    run ended, the earliest time its reports imply: messages may be late, but never early.
    """

    worker: WorkerName
    report: WorkerReport | None = None
    seen_at: float | None = None
    same: int = 0
    ended_at: float | None = None

    @cached_property
    def text(self) -> str:
        """Return its name as text."""
        return str(self.worker)

    def receive(self, report: WorkerReport, clock_s: float) -> bool:
        """Store a report; return whether it shows a visible change."""
        before = self.report
        self.seen_at = clock_s
        same = (
            before is not None
            and before.state is report.state
            and before.generation == report.generation
            and before.exit_code == report.exit_code
        )
        ended_at = None
        if report.state is WorkerState.EXITED:
            ended_at = clock_s - (report.ended_s_ago or 0.0)
            if same and self.ended_at is not None:
                ended_at = min(ended_at, self.ended_at)
        self.ended_at = ended_at
        self.same = self.same + 1 if same else 1
        self.report = report
        return not same or (before is not None and before.reason != report.reason)


@dataclass
class NodeEntry:
    """A node and its workers by number."""

    node: NodeRecord
    workers: dict[int, WorkerEntry] = field(default_factory=dict)
    seen_at: float | None = None
    machine: MachineReport | None = None
    quarantine: QuarantineReport | None = None
    gpu_processes: tuple[ForeignGpuProcess, ...] = ()
    """Processes that belong to no run of its agent."""
    release: float | None = None
    """Start of the quarantine that a user has ended, until its agent has done so."""
    refused: set[str] = field(default_factory=set)
    """Other installations that asked for this name in vain; each is recorded once, up to a limit."""

    def receive(self, beat: Heartbeat, clock_s: float) -> bool:
        """Store what a heartbeat reports about the node itself; return whether it shows a visible change."""
        changed = self.quarantine != beat.quarantine or self.gpu_processes != beat.gpu_processes
        self.gpu_processes = beat.gpu_processes
        self.seen_at = clock_s
        self.machine = beat.machine or self.machine
        self.quarantine = beat.quarantine
        if beat.quarantine is None or beat.quarantine.since != self.release:
            self.release = None
        return changed


class WorkerGlance(NamedTuple):
    """A worker in brief form, for lists and counts."""

    worker: str
    node: str
    hostname: str
    group: str | None
    status: WorkerStatus
    silent: bool
    rank: int | None
    entry: WorkerEntry

    @property
    def report(self) -> WorkerReport | None:
        """Return its newest report."""
        return self.entry.report

    @property
    def gpu_indexes(self) -> set[int]:
        """Return the indexes of its GPUs on its node."""
        return {gpu.index for gpu in self.entry.report.gpus} if self.entry.report else set()


class NodeGlance(NamedTuple):
    """A node and its workers in brief form, for lists and counts."""

    entry: NodeEntry
    silent: bool
    workers: Sequence[WorkerGlance]

    @property
    def node(self) -> str:
        """Return its name."""
        return self.entry.node.name

    @property
    def groups(self) -> list[str]:
        """Return the groups of its workers."""
        return sorted({worker.group for worker in self.workers if worker.group})

    @property
    def gpus(self) -> list[GpuReport]:
        """Return its GPUs by index."""
        return gpus_by_index(gpu for one in self.workers if one.report for gpu in one.report.gpus)


def gpus_by_index(gpus: Iterable[GpuReport]) -> list[GpuReport]:
    """Return each GPU once, by index."""
    found = {gpu.index: gpu for gpu in gpus}
    return [found[index] for index in sorted(found)]


@dataclass
class Registry:
    """All nodes by name, and by the hash of their credential."""

    nodes: dict[str, NodeEntry] = field(default_factory=dict)
    by_credential: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[NodeRecord], workers: Iterable[WorkerName]) -> Registry:
        """Return a registry of the stored nodes; none has sent a heartbeat yet."""
        entries = {node.name: NodeEntry(node) for node in nodes}
        for worker in workers:
            entries[worker.node].workers[worker.number] = WorkerEntry(worker)
        registry = cls()
        for entry in entries.values():
            registry.add(entry)
        return registry

    def node(self, name: str) -> NodeEntry:
        """Return a node. Raises NotFound."""
        entry = self.nodes.get(name)
        if entry is None:
            raise NotFound("no-node", node=name[:80])
        return entry

    def in_order(self) -> list[NodeEntry]:
        """Return all nodes by name."""
        return sorted(self.nodes.values(), key=lambda entry: entry.node.order)

    def all_workers(self) -> Iterator[tuple[NodeEntry, WorkerEntry]]:
        """Iterate over all workers, by node and number."""
        for entry in self.in_order():
            for worker in entry.workers.values():
                yield entry, worker

    def add(self, entry: NodeEntry) -> None:
        """Add or replace a node; its previous credential becomes invalid."""
        entry.workers = dict(sorted(entry.workers.items()))
        before = self.nodes.get(entry.node.name)
        self.nodes[entry.node.name] = entry
        self.by_credential[entry.node.credential_sha256] = entry.node.name
        if before and before.node.credential_sha256 != entry.node.credential_sha256:
            self.by_credential.pop(before.node.credential_sha256, None)

    def remove(self, name: str) -> None:
        """Remove a node."""
        entry = self.nodes.pop(name)
        self.by_credential.pop(entry.node.credential_sha256, None)

    def seen_at(self, worker: WorkerName) -> float | None:
        """Return the time of a worker's last heartbeat."""
        node = self.nodes.get(worker.node)
        entry = node.workers.get(worker.number) if node else None
        return entry.seen_at if entry else None

    def member(self, name: WorkerName, generation: int, moment: Moment) -> WorkerSnapshot:
        """Return a snapshot of a worker; ``generation`` is the highest one stored."""
        entry = self.nodes.get(name.node)
        worker = entry.workers.get(name.number) if entry else None
        if entry is None or worker is None:
            return WorkerSnapshot(name, silent_s=moment.silent_s(None), generation=generation)
        return WorkerSnapshot(
            name,
            report=worker.report,
            same=worker.same,
            silent_s=moment.silent_s(worker.seen_at),
            ended_at=worker.ended_at,
            generation=generation,
            names=entry.node.names,
            command=entry.node.join.command,
            labels=entry.node.join.labels,
            drained=bool(entry.node.drained_by),
            quarantined=entry.quarantine is not None,
            gpu_processes=entry.gpu_processes,
        )
