"""What agents are answered: from memory, so that no heartbeat waits for a writer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from platform_launch.procguard import views
from platform_launch.procguard.joining import Joining, credential_hash
from platform_launch.procguard.ledger import Store
from platform_launch.procguard.live import LiveWorker
from platform_launch.procguard.looking import Looking
from platform_launch.procguard.orders import order_for
from platform_launch.procguard.refused import Refused, Unavailable
from platform_launch.procguard.wire import Beat, Join, Joined, Order, Orders


class Answering(Looking):
    """The side of Control that agents speak to."""

    def __init__(
        self,
        store: Store,
        log_size: views.LogSize,
        heartbeat_s: float,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        super().__init__(store, log_size, clock, now)
        self._joining = Joining(self._ledger, self._roster, now)
        self._heartbeat_s = heartbeat_s
        self._heard = False
        self._superseded = ""

    def join(self, join: Join) -> Joined:
        """Take a node in. Raises Refused where its name is another living agent's."""
        with self._ledger.writing:
            credential = self._joining.join(join, self._clock(), self._listening_since)
        self._changed()
        return Joined(credential=credential, heartbeat_s=self._heartbeat_s)

    def who(self, credential: str) -> str | None:
        """Return the node whose agent this is, None where it is nobody's."""
        return self._roster.by_credential.get(credential_hash(credential))

    def heartbeat(self, node: str, beat: Beat) -> Orders:
        """Take in what a node's workers do and say what is wanted of them. Memory only.

        Raises Refused where the credential is an earlier installation's, Unavailable where another server has
        taken the database over.
        """
        if self._superseded:
            raise Unavailable(self._superseded, "ask the server that has it")
        live = self._roster.nodes.get(node)
        if live is None or beat.node != node or beat.instance != live.node.instance:
            raise Refused(
                f"the agent of node {beat.node!r} is no longer known by this credential",
                "join again with the join token",
            )
        clock_s = self._clock()
        live.seen_at = clock_s
        seen_at_once = False
        orders: dict[int, Order] = {}
        for report in beat.workers:
            worker = live.workers.get(report.number)
            if worker is None:
                continue
            seen_at_once |= worker.take(report, clock_s)
            orders[report.number] = self._order(worker)
        self._heard = True
        if seen_at_once:
            self._changed()
        return Orders.model_construct(orders=orders, heartbeat_s=self._heartbeat_s)

    def _order(self, worker: LiveWorker) -> Order:
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
