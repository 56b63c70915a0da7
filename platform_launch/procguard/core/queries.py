"""Read access to groups, workers, nodes, runs and events, from memory and the database."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.refused import NotFound
from platform_launch.procguard.api.shapes.groups import (
    GroupPhase,
    GroupSettings,
    GroupShape,
    RankPreview,
    RunDetail,
    RunShape,
)
from platform_launch.procguard.api.shapes.history import AuditEvent, EventFilter
from platform_launch.procguard.api.shapes.logs import LogRun
from platform_launch.procguard.api.shapes.workers import NodeShape, WorkerShape
from platform_launch.procguard.core import views
from platform_launch.procguard.core.clock import Moment, ServerClock
from platform_launch.procguard.core.freeze import rank_table
from platform_launch.procguard.core.group import Group
from platform_launch.procguard.core.ledger import Ledger
from platform_launch.procguard.core.queue import in_queue
from platform_launch.procguard.core.registry import (
    DEFAULT_SILENT_AFTER_S,
    NodeEntry,
    NodeGlance,
    Registry,
    WorkerEntry,
)
from platform_launch.procguard.core.snapshot import Members, WorkerSnapshot

_EVERY_EVENT = EventFilter()


class Queries:
    """Read-only; thread-safe without a lock.

    ``log_size`` returns how many bytes of a worker's log of a generation the server has. Methods that read
    the database raise Unavailable.
    """

    def __init__(
        self, ledger: Ledger, registry: Registry, clock: ServerClock, log_size: views.LogSize
    ) -> None:
        self._ledger = ledger
        self._registry = registry
        self._clock = clock
        self._log_size = log_size
        self._version = 0
        self._counting = threading.Lock()

    @property
    def version(self) -> int:
        """A number that increases with every visible change; for heartbeats alone at most once a second."""
        return self._version

    def changed(self) -> None:
        """Count a visible change."""
        with self._counting:
            self._version += 1

    def groups(self) -> list[GroupShape]:
        """Return all groups by name."""
        return [self._shape(group) for _, group in sorted(self._ledger.world.groups.items())]

    def group(self, name: str) -> GroupShape:
        """Return a group. Raises NotFound."""
        return self._shape(self._ledger.world.group(name))

    def worker_names(self) -> list[str]:
        """Return the names of all workers by node and number."""
        return [worker.text for _, worker in self._registry.all_workers()]

    def node_names(self) -> list[str]:
        """Return the names of all nodes in order."""
        return [entry.node.name for entry in self._registry.in_order()]

    def glances(self) -> list[NodeGlance]:
        """Return all nodes by name in brief form, each with its workers by number."""
        world, moment = self._ledger.world, self._clock.moment()
        limits = {name: views.silent_after_s(group) for name, group in world.groups.items()}
        nodes = []
        for entry in self._registry.in_order():
            workers = []
            for worker in entry.workers.values():
                row = world.workers.get(worker.worker)
                group = world.groups.get(row.group) if row and row.group else None
                limit_s = limits[group.name] if group else DEFAULT_SILENT_AFTER_S
                silent = moment.silent_s(worker.seen_at) > limit_s
                workers.append(views.worker_glance(entry, worker, group, silent=silent))
            silent = moment.silent_s(entry.seen_at) > DEFAULT_SILENT_AFTER_S
            nodes.append(NodeGlance(entry, silent, workers))
        return nodes

    def worker(self, worker: str) -> WorkerShape:
        """Return a worker. Raises NotFound."""
        name = self._ledger.world.row(worker).worker
        node = self._registry.nodes.get(name.node)
        entry = node.workers.get(name.number) if node else None
        if node is None or entry is None:
            raise NotFound("no-worker", worker=worker[:80])  # its node is being removed
        return self._worker(node, entry, self._clock.moment())

    def node(self, name: str) -> NodeShape:
        """Return a node. Raises NotFound."""
        entry, moment = self._registry.node(name), self._clock.moment()
        workers = [self._worker(entry, worker, moment) for worker in entry.workers.values()]
        return views.node_shape(entry, workers, moment.silent_s(entry.seen_at))

    def preview(self, name: str, settings: GroupSettings | None = None) -> RankPreview:
        """Return the rank table of the next start, with these settings or the group's own. Raises
        NotFound.
        """
        group = self._ledger.world.group(name)
        wanted = settings or group.settings
        table = rank_table(wanted, group.workers, self.members(group.workers))
        environments = [
            {**wanted.environment, **table.environment(place, wanted.backend)} for place in table.places
        ]
        return RankPreview(**dict(table), environments=environments)

    def runs(self, name: str, before: int | None = None, limit: int = 50, cause: str = "") -> list[RunShape]:
        """Return the newest runs of a group, or those before one, newest first. Raises NotFound.

        ``cause``: only those whose failure contains this text.
        """
        self._ledger.world.group(name)
        return self._ledger.store.runs(name, before, limit, cause)

    def run(self, name: str, number: int) -> RunDetail:
        """Return a run of a group. Raises NotFound."""
        run = self._ledger.store.run(name, number)
        if run is None:
            raise NotFound("no-run", number=str(number), group=name[:80])
        return run

    def run_names(self, worker: str, generations: Sequence[int]) -> list[LogRun]:
        """Return the runs of a worker's generations, if known."""
        found = self._ledger.store.runs_of(worker, generations)
        return [LogRun(generation=one, group=group, number=number) for one, group, number in found]

    def events(
        self, before: int | None = None, limit: int = 100, chosen: EventFilter = _EVERY_EVENT
    ) -> list[AuditEvent]:
        """Return the newest selected entries of the audit log, or those before one, newest first."""
        return self._ledger.store.events(before, limit, chosen)

    def members(self, workers: Iterable[WorkerName]) -> Members:
        """Return a snapshot of workers at this moment."""
        moment = self._clock.moment()
        return {worker: self._member(worker, moment) for worker in workers}

    def _member(self, worker: WorkerName, moment: Moment) -> WorkerSnapshot:
        row = self._ledger.world.workers.get(worker)
        return self._registry.member(worker, row.generation if row else 0, moment)

    def _worker(self, node: NodeEntry, entry: WorkerEntry, moment: Moment) -> WorkerShape:
        group = self._ledger.world.group_of(entry.worker)
        return views.worker_shape(node, entry, group, self._member(entry.worker, moment))

    def _shape(self, group: Group) -> GroupShape:
        moment, limit_s = self._clock.moment(), views.silent_after_s(group)
        silent = [
            worker for worker in group.workers if moment.silent_s(self._registry.seen_at(worker)) > limit_s
        ]
        members = self.members(views.members_shown(group))
        place = None
        if group.phase is GroupPhase.QUEUED:
            place = 1 + [one.name for one in in_queue(self._ledger.world.groups.values())].index(group.name)
        elapsed_s = self._clock.in_phase_s(group)
        return views.group_shape(group, silent, members, self._log_size, elapsed_s, place)
