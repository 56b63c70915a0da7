"""Answers heartbeats: turns the phase of each worker's group into an order."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.shapes.groups import GroupPhase
from platform_launch.procguard.api.wire import Heartbeat, OrderAction, WorkerOrder, WorkerOrders
from platform_launch.procguard.core.group import Group
from platform_launch.procguard.core.registry import NodeEntry, WorkerEntry
from platform_launch.procguard.database.store import Ledger


def order_for(group: Group | None, worker: WorkerName, known: int) -> WorkerOrder:
    """Return a worker's order; ``known`` is the highest generation that it reports or ever had.

    The order is not validated: all its values are.
    """
    run = group.run if group else None
    place = run.place_of.get(worker) if run else None
    if (
        group is None
        or run is None
        or place is None
        or group.phase not in (GroupPhase.PREPARING, GroupPhase.RUNNING)
    ):
        grace_s = run.settings.grace_s if run else WorkerOrder.model_fields["grace_s"].default
        return _stop(max(known, run.generation if run else 0), grace_s)
    preparing = group.phase is GroupPhase.PREPARING
    listens = place.rank == 0
    return WorkerOrder.model_construct(
        action=OrderAction.PREPARE if preparing else OrderAction.RUN,
        generation=run.generation,
        command=run.commands[worker.node],
        environment=run.table.environment(place, run.settings.backend),
        variables=run.settings.environment,
        directory=run.settings.directory,
        check_port=run.table.master_port if preparing and listens else None,
        grace_s=run.settings.grace_s,
    )


@lru_cache(maxsize=1000)  # most heartbeats are of idle workers
def _stop(generation: int, grace_s: float) -> WorkerOrder:
    return WorkerOrder.model_construct(action=OrderAction.STOP, generation=generation, grace_s=grace_s)


class Orders:
    """Answers heartbeats from memory. ``log_size`` returns the stored bytes of a worker's log of a
    generation.
    """

    def __init__(self, ledger: Ledger, log_size: Callable[[str, int], int], heartbeat_s: float) -> None:
        self._ledger = ledger
        self._log_size = log_size
        self._heartbeat_s = heartbeat_s

    def answer(self, entry: NodeEntry, beat: Heartbeat, clock_s: float) -> tuple[WorkerOrders, bool]:
        """Store a node's heartbeat; return its orders, and whether it has something visible to people."""
        visible = entry.receive(beat, clock_s)
        orders: dict[int, WorkerOrder] = {}
        for report in beat.workers:
            worker = entry.workers.get(report.number)
            if worker is not None:
                visible |= worker.receive(report, clock_s)
                orders[report.number] = self._order(worker, report.generation)
        answer = WorkerOrders.model_construct(
            orders=orders, heartbeat_s=self._heartbeat_s, release=entry.release
        )
        return answer, visible

    def _order(self, worker: WorkerEntry, reported: int) -> WorkerOrder:
        world = self._ledger.world
        row = world.workers.get(worker.worker)
        group = world.groups.get(row.group) if row and row.group else None
        order = order_for(group, worker.worker, max(reported, row.generation if row else 0))
        size = self._log_size(worker.text, order.generation)
        return order.model_copy(update={"log_offset": size}) if size else order
