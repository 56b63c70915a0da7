"""The last reports of agents, in memory only because they are repeated. Heartbeats write it without a lock.

Each field is replaced as a whole, so a reader in another thread sees either the old value or the new one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.refused import NotFound
from platform_launch.procguard.api.shapes import Shape
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
from platform_launch.procguard.core.clock import Moment
from platform_launch.procguard.core.snapshot import WorkerSnapshot

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
