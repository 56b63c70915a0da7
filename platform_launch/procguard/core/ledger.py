"""The stored state in memory: read without a lock, changed only after the database."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.refused import NotFound
from platform_launch.procguard.api.shapes.groups import RunDetail, RunShape
from platform_launch.procguard.api.shapes.history import AuditEvent, EventFilter
from platform_launch.procguard.api.shapes.logs import LogRun
from platform_launch.procguard.api.wire import MAX_WORKERS_PER_NODE
from platform_launch.procguard.core.group import Group
from platform_launch.procguard.core.registry import NodeRecord
from platform_launch.sentences import Sentence


@dataclass(frozen=True)
class WorkerRow:
    """A worker's row: its group, and the highest generation it had in earlier groups."""

    worker: WorkerName
    group: str | None
    generation: int = 0


class StoreChange(Protocol):
    """One transaction."""

    def write_group(self, group: Group) -> None:
        """Write a group, new or not, without its workers."""

    def write_run(self, run: RunDetail) -> None:
        """Write a run into its group's history, new or not."""

    def delete_group(self, name: str) -> None:
        """Delete a group with its history; its workers stay, in no group."""

    def write_node(self, node: NodeRecord) -> None:
        """Write a node, new or not, without its workers."""

    def delete_node(self, name: str) -> None:
        """Delete a node and its workers."""

    def write_workers(self, rows: Iterable[WorkerRow]) -> None:
        """Write workers, new or not."""

    def delete_workers(self, workers: Iterable[WorkerName]) -> None:
        """Delete workers."""

    def event(self, at: datetime, who: str, action: str, on: str, detail: Sentence | None = None) -> None:
        """Add an entry to the audit log."""


class GroupStore(Protocol):
    """The database. Each method raises :class:`~platform_launch.procguard.api.refused.Unavailable`."""

    def check(self) -> None:
        """Check that this process is still the database's server. Raises Superseded."""

    def load(self) -> tuple[list[Group], list[NodeRecord], list[WorkerRow]]:
        """Read everything but events: groups with their workers, nodes and workers."""

    @contextmanager
    def change(self) -> Iterator[StoreChange]:
        """Open a transaction, committed at the end of the block."""
        yield  # type: ignore[misc]

    def runs(self, group: str, before: int | None, limit: int, cause: str = "") -> list[RunShape]:
        """Read the newest runs of a group, or those before one, newest first, filtered by ``cause``."""

    def run(self, group: str, number: int) -> RunDetail | None:
        """Read a run."""

    def runs_of(self, worker: str, generations: Sequence[int]) -> list[LogRun]:
        """Read the runs of a worker's generations."""

    def events(self, before: int | None, limit: int, chosen: EventFilter) -> list[AuditEvent]:
        """Read the newest selected events, or those before one, newest first."""


@dataclass(frozen=True)
class World:
    """All groups and every worker's row, at one moment."""

    groups: Mapping[str, Group] = field(default_factory=dict)
    workers: Mapping[WorkerName, WorkerRow] = field(default_factory=dict)

    def group(self, name: str) -> Group:
        """Return a group. Raises NotFound."""
        group = self.groups.get(name)
        if group is None:
            raise NotFound("no-group", group=name[:80])
        return group

    def row(self, worker: str) -> WorkerRow:
        """Return a worker's row by its name. Raises NotFound."""
        try:
            row = self.workers.get(WorkerName.parse(worker))
        except ValueError:
            row = None
        if row is None:
            raise NotFound("no-worker", worker=worker[:80])
        return row

    def group_of(self, worker: WorkerName) -> Group | None:
        """Return the group of a worker."""
        row = self.workers.get(worker)
        return self.groups.get(row.group) if row and row.group else None

    def on_node(self, node: str) -> list[WorkerRow]:
        """Return the rows of a node's workers by number, without scanning all workers."""
        names = (WorkerName(node, number) for number in range(MAX_WORKERS_PER_NODE))
        return [row for name in names if (row := self.workers.get(name))]

    def with_group(self, group: Group) -> World:
        """Return a world with this group added or replaced."""
        return replace(self, groups={**self.groups, group.name: group})

    def without_group(self, name: str) -> World:
        """Return a world without a group; its workers are in no group."""
        members = [row for row in self.workers.values() if row.group == name]
        world = self.moved(members, None)
        return replace(world, groups={key: group for key, group in world.groups.items() if key != name})

    def moved(self, rows: Iterable[WorkerRow], to: str | None) -> World:
        """Return a world in which workers are in another group. Their highest generation is kept."""
        changed = {row.worker: WorkerRow(row.worker, to, self._highest(row)) for row in rows}
        return self._regrouped({**self.workers, **changed})

    def with_rows(self, rows: Iterable[WorkerRow], gone: Iterable[WorkerName] = ()) -> World:
        """Return a world with additional workers, and without some."""
        new, leaving = {row.worker: row for row in rows}, set(gone)
        left = {**self.workers, **new}
        for worker in leaving:
            left.pop(worker, None)
        return self._regrouped(left)

    def _highest(self, row: WorkerRow) -> int:
        group = self.groups.get(row.group) if row.group else None
        return max(row.generation, group.generation if group else 0)

    def _regrouped(self, rows: Mapping[WorkerName, WorkerRow]) -> World:
        """Return a world with these rows, and groups with the matching members."""
        members: dict[str, list[WorkerName]] = {name: [] for name in self.groups}
        for worker, row in rows.items():
            if row.group in members:
                members[row.group].append(worker)
        groups = {
            name: group if group.workers == (now := tuple(sorted(members[name]))) else group.but(workers=now)
            for name, group in self.groups.items()
        }
        return World(groups, rows)


class Ledger:
    """The world and the lock for changing it. ``world`` may be read at any time, as a whole."""

    def __init__(self, store: GroupStore) -> None:
        self.store = store
        self.writing = threading.RLock()
        groups, self.nodes, workers = store.load()
        self.world = World({group.name: group for group in groups}, {row.worker: row for row in workers})

    @contextmanager
    def change(self, world: World) -> Iterator[StoreChange]:
        """Write a change, then replace ``world``; hold ``writing`` throughout.

        Raises Unavailable; nothing has changed then.
        """
        with self.store.change() as change:
            yield change
        self.world = world
