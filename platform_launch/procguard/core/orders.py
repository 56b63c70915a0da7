"""What heartbeats are answered with: the phase of each worker's group as an order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.shapes.groups import GroupPhase
from platform_launch.procguard.api.wire import Heartbeat, OrderAction, WorkerOrder, WorkerOrders
from platform_launch.procguard.core.group import Group
from platform_launch.procguard.core.ledger import Ledger
from platform_launch.procguard.core.registry import NodeEntry, WorkerEntry


def order_for(group: Group | None, worker: WorkerName, known: int) -> WorkerOrder:
    """Return a worker's order; ``known`` is the highest generation that it reports or ever had."""
    run = group.run if group else None
    place = run.place_of.get(worker) if run else None
    if (
        group is None
        or run is None
        or place is None
        or group.phase not in (GroupPhase.PREPARING, GroupPhase.RUNNING)
    ):
        grace_s = run.settings.grace_s if run else WorkerOrder.model_fields["grace_s"].default
        return WorkerOrder(
            action=OrderAction.STOP, generation=max(known, run.generation if run else 0), grace_s=grace_s
        )
    preparing = group.phase is GroupPhase.PREPARING
    listens = place.rank == 0
    return WorkerOrder(
        action=OrderAction.PREPARE if preparing else OrderAction.RUN,
        generation=run.generation,
        command=run.commands[worker.node],
        environment=run.table.environment(place, run.settings.backend),
        variables=run.settings.environment,
        directory=run.settings.directory,
        check_port=run.table.master_port if preparing and listens else None,
        grace_s=run.settings.grace_s,
    )


class Orders:
    """Answers heartbeats from memory. What has not changed is the same object as before: 5,000 agents ask.

    ``log_size`` tells how many bytes of a worker's log of a generation the server has.
    """

    def __init__(self, ledger: Ledger, log_size: Callable[[str, int], int], heartbeat_s: float) -> None:
        self._ledger = ledger
        self._log_size = log_size
        self._heartbeat_s = heartbeat_s

    def answer(self, entry: NodeEntry, beat: Heartbeat, clock_s: float) -> tuple[WorkerOrders, bool]:
        """Take in a node's heartbeat; return its orders, and whether people see at once what it says."""
        visible = entry.receive(beat, clock_s)
        orders: dict[int, WorkerOrder] = {}
        for report in beat.workers:
            worker = entry.workers.get(report.number)
            if worker is None:
                continue
            visible |= worker.take(report, clock_s)
            orders[report.number] = self._order(worker)
        before = entry.orders
        if before is None or before.release != entry.release or not _unchanged(before.orders, orders):
            before = entry.orders = WorkerOrders(
                orders=orders, heartbeat_s=self._heartbeat_s, release=entry.release
            )
        return before, visible

    def _order(self, worker: WorkerEntry) -> WorkerOrder:
        """Return what is wanted of a worker: the same object for as long as it is the same."""
        world = self._ledger.world
        row = world.workers.get(worker.worker)
        group = world.groups.get(row.group) if row and row.group else None
        known = max(worker.report.generation if worker.report else 0, row.generation if row else 0)
        basis = (group.run if group else None, group.phase if group else None, known)
        order = worker.order
        if order is None or worker.order_for is None or not _same(worker.order_for, basis):
            order = order_for(group, worker.worker, known)
            worker.order_for = basis
        size = self._log_size(worker.text, order.generation)
        if order.log_offset != size:
            order = order.model_copy(update={"log_offset": size})
        worker.order = order
        return order


def _same(one: tuple[object, object, int], other: tuple[object, object, int]) -> bool:
    """Compare what orders are made from; runs by identity, as they are large and never edited."""
    return one[0] is other[0] and one[1] is other[1] and one[2] == other[2]


def _unchanged(before: Mapping[int, WorkerOrder], orders: Mapping[int, WorkerOrder]) -> bool:
    """Compare orders by identity: each is the same object for as long as it says the same."""
    return before.keys() == orders.keys() and all(before[number] is orders[number] for number in orders)
