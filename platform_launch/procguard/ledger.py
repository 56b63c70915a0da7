"""What is written down, as it stands in memory: read without a lock, changed only after the database was."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from platform_launch.procguard.group import Group
from platform_launch.procguard.live import Node
from platform_launch.procguard.ranks import WorkerName
from platform_launch.procguard.shapes import Event


@dataclass(frozen=True)
class Membership:
    """A worker's row: its group, and the highest generation it had in groups it was in before."""

    worker: WorkerName
    group: str | None
    generation: int = 0


@dataclass(frozen=True)
class Saved:
    """Everything that outlives a server. Groups come with their workers."""

    groups: tuple[Group, ...] = ()
    nodes: tuple[Node, ...] = ()
    workers: tuple[Membership, ...] = ()


class Change(Protocol):
    """One transaction: all of it is written or none."""

    def put_group(self, group: Group) -> None:
        """Write a group, new or not; not its workers."""

    def delete_group(self, name: str) -> None:
        """Delete a group; its workers are in none then."""

    def put_node(self, node: Node) -> None:
        """Write a node, new or not; not its workers."""

    def delete_node(self, name: str) -> None:
        """Delete a node and its workers."""

    def put_workers(self, rows: Iterable[Membership]) -> None:
        """Write workers, new or not."""

    def delete_workers(self, workers: Iterable[WorkerName]) -> None:
        """Delete workers."""

    def event(self, at: datetime, who: str, action: str, on: str, detail: str) -> None:
        """Add an entry to the audit log."""


class Store(Protocol):
    """Where it is written. Every method raises :class:`~platform_launch.procguard.refused.Unavailable`."""

    def check(self) -> None:
        """Make sure that this process still is the one that decides. Raises Superseded where not."""

    def load(self) -> Saved:
        """Read everything but events."""

    @contextmanager
    def change(self) -> Iterator[Change]:
        """Open a transaction, committed at the end of the block."""
        yield  # type: ignore[misc]

    def events(self, before: int | None, limit: int) -> list[Event]:
        """Read the newest events, or those before one, newest first."""


@dataclass(frozen=True)
class World:
    """All groups, and every worker's row, at one moment."""

    groups: Mapping[str, Group] = field(default_factory=dict)
    workers: Mapping[WorkerName, Membership] = field(default_factory=dict)

    def group_of(self, worker: WorkerName) -> Group | None:
        """Return the group a worker is in."""
        row = self.workers.get(worker)
        return self.groups.get(row.group) if row and row.group else None

    def with_group(self, group: Group) -> World:
        """Return a world in which a group is so."""
        return replace(self, groups={**self.groups, group.name: group})

    def without_group(self, name: str) -> World:
        """Return a world without a group; its workers are in none."""
        members = [row for row in self.workers.values() if row.group == name]
        world = self.moved(members, None)
        return replace(world, groups={key: group for key, group in world.groups.items() if key != name})

    def moved(self, rows: Iterable[Membership], to: str | None) -> World:
        """Return a world in which workers are in another group; what they were told before stays known."""
        changed = {row.worker: Membership(row.worker, to, self._highest(row)) for row in rows}
        return self._regrouped({**self.workers, **changed})

    def with_rows(self, rows: Iterable[Membership], gone: Iterable[WorkerName] = ()) -> World:
        """Return a world with more workers, and without some."""
        left = {**self.workers, **{row.worker: row for row in rows}}
        for worker in gone:
            left.pop(worker, None)
        return self._regrouped(left)

    def _highest(self, row: Membership) -> int:
        group = self.groups.get(row.group) if row.group else None
        return max(row.generation, group.generation if group else 0)

    def _regrouped(self, rows: Mapping[WorkerName, Membership]) -> World:
        """Return a world with these rows, and groups that have their members by them."""
        members: dict[str, list[WorkerName]] = {name: [] for name in self.groups}
        for worker, row in rows.items():
            if row.group in members:
                members[row.group].append(worker)
        groups = {
            name: group
            if group.workers == (now := tuple(sorted(members[name])))
            else replace(group, workers=now)
            for name, group in self.groups.items()
        }
        return World(groups, rows)


class Ledger:
    """The world and the lock of those who change it. ``world`` may be read at any time, as a whole."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.writing = threading.RLock()
        saved = store.load()
        rows = {row.worker: row for row in saved.workers}
        self.world = World({group.name: group for group in saved.groups}, rows)
        self.nodes = saved.nodes

    @contextmanager
    def change(self, world: World) -> Iterator[Change]:
        """Write a change down and take ``world`` over after; hold ``writing`` throughout.

        Raises Unavailable, and nothing has changed then.
        """
        with self.store.change() as change:
            yield change
        self.world = world
