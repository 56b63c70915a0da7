"""What is wanted of one worker: its group's phase as an order. Pure."""

from __future__ import annotations

from platform_launch.procguard.group import Group
from platform_launch.procguard.ranks import WorkerName
from platform_launch.procguard.shapes import Phase
from platform_launch.procguard.wire import Action, Order


def order_for(group: Group | None, worker: WorkerName, known: int) -> Order:
    """Return a worker's order; ``known`` is the highest generation that it reports or ever had."""
    run = group.run if group else None
    place = run.place_of.get(worker) if run else None
    if group is None or run is None or place is None or group.phase not in (Phase.PREPARING, Phase.RUNNING):
        grace_s = run.settings.grace_s if run else Order.model_fields["grace_s"].default
        return Order(action=Action.STOP, generation=max(known, run.generation if run else 0), grace_s=grace_s)
    preparing = group.phase is Phase.PREPARING
    listens = place.rank == 0
    return Order(
        action=Action.PREPARE if preparing else Action.RUN,
        generation=run.generation,
        command=run.commands[worker.node],
        environment=place.environment(run.settings.backend),
        check_port=place.topology.master_port if preparing and listens else None,
        grace_s=run.settings.grace_s,
    )
