"""Groups and workers as they are now: read from memory by any thread, without a lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime

from platform_launch.errors import shown
from platform_launch.procguard import views
from platform_launch.procguard.freeze import Members, rank_table
from platform_launch.procguard.group import Group
from platform_launch.procguard.joining import roster_of
from platform_launch.procguard.ledger import Ledger, Membership, Store
from platform_launch.procguard.member import Member
from platform_launch.procguard.ranks import WorkerName
from platform_launch.procguard.refused import NotFound, Refused
from platform_launch.procguard.shapes import Event, GroupSettings, GroupShape, RankPreview, WorkerShape


class Looking:
    """What is written down and what agents said last, and both together as people see them."""

    def __init__(
        self,
        store: Store,
        log_size: views.LogSize,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._ledger = Ledger(store)
        self._roster = roster_of(self._ledger)
        self._log_size = log_size
        self._clock = clock
        self._now = now
        self._listening_since = clock()
        self._version = 0
        self._counting = threading.Lock()

    @property
    def version(self) -> int:
        """A number that increases with every visible change; by heartbeats alone at most once a second."""
        return self._version

    def groups(self) -> list[GroupShape]:
        """Return all groups by name."""
        return [self._shape(group) for _, group in sorted(self._ledger.world.groups.items())]

    def group(self, name: str) -> GroupShape:
        """Return a group. Raises NotFound."""
        return self._shape(self._group(name))

    def workers(self) -> list[WorkerShape]:
        """Return all workers by node and number."""
        world, clock_s = self._ledger.world, self._clock()
        return [
            views.worker_shape(node, live, world.group_of(live.worker), self._member(live.worker, clock_s))
            for node, live in self._roster.all_workers()
        ]

    def worker(self, worker: str) -> WorkerShape:
        """Return a worker. Raises NotFound."""
        name = self._row(worker).worker
        node = self._roster.nodes.get(name.node)
        live = node.workers.get(name.number) if node else None
        if node is None or live is None:
            raise _no_worker(worker)  # it is being forgotten
        group = self._ledger.world.group_of(name)
        return views.worker_shape(node, live, group, self._member(name, self._clock()))

    def preview(
        self, name: str, settings: GroupSettings | None = None, workers: Sequence[str] | None = None
    ) -> RankPreview:
        """Return the rank table as it would be with other settings or workers. Raises NotFound."""
        group = self._group(name)
        chosen = group.workers if workers is None else tuple(self._row(worker).worker for worker in workers)
        wanted = settings or group.settings
        return views.preview(rank_table(wanted, chosen, self._members(chosen)), wanted.backend)

    def events(self, before: int | None = None, limit: int = 100) -> list[Event]:
        """Return the newest entries of the audit log, or those before one, newest first."""
        return self._ledger.store.events(before, limit)

    def _changed(self) -> None:
        with self._counting:
            self._version += 1

    def _group(self, name: str) -> Group:
        group = self._ledger.world.groups.get(name)
        if group is None:
            raise NotFound(f"no group {shown(name)}", "look at the list of groups")
        return group

    def _resting(self, name: str) -> Group:
        group = self._group(name)
        if group.active:
            raise Refused(f"{name} is {group.phase.value}", "stop it first")
        return group

    def _row(self, worker: str) -> Membership:
        try:
            row = self._ledger.world.workers.get(WorkerName.parse(worker))
        except ValueError:
            row = None
        if row is None:
            raise _no_worker(worker)
        return row

    def _members(self, workers: Sequence[WorkerName]) -> Members:
        clock_s = self._clock()
        return {worker: self._member(worker, clock_s) for worker in workers}

    def _member(self, worker: WorkerName, clock_s: float) -> Member:
        row = self._ledger.world.workers.get(worker)
        return self._roster.member(worker, row.generation if row else 0, clock_s, self._listening_since)

    def _shape(self, group: Group) -> GroupShape:
        return views.group_shape(group, self._members(group.workers), self._log_size)


def _no_worker(worker: str) -> NotFound:
    return NotFound(f"no worker {shown(worker)}", "look at the list of workers")
