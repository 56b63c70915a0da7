"""What is wanted of one worker: its group's phase as an order. Pure."""

from __future__ import annotations

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.shapes import GroupPhase
from platform_launch.procguard.api.wire import OrderAction, WorkerOrder
from platform_launch.procguard.core.group import Group


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
        environment=place.environment(run.settings.backend),
        variables=run.settings.environment,
        directory=run.settings.directory,
        check_port=place.topology.master_port if preparing and listens else None,
        grace_s=run.settings.grace_s,
    )
