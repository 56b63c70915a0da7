"""All groups and every worker's row at one moment, as a frozen value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.refused import NotFound
from platform_launch.procguard.api.wire import MAX_WORKERS_PER_NODE
from platform_launch.procguard.core.group import Group


@dataclass(frozen=True)
class WorkerRow:
    """A worker's row: its group, and the highest generation it had in earlier groups."""

    worker: WorkerName
    group: str | None
    generation: int = 0


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

    def with_rows(self, rows: Iterable[WorkerRow], removed: Iterable[WorkerName] = ()) -> World:
        """Return a world with additional workers, and without some."""
        new, leaving = {row.worker: row for row in rows}, set(removed)
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
