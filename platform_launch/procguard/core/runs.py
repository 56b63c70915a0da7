"""The history of a group: one document per run, as it stands now or ended. Pure."""

from __future__ import annotations

from datetime import datetime

from platform_launch.procguard.api.shapes.groups import GroupPhase
from platform_launch.procguard.api.shapes.runs import RunDetail
from platform_launch.procguard.core.group import Group

_OUTCOMES = {
    GroupPhase.FINISHED: GroupPhase.FINISHED,
    GroupPhase.FAILED: GroupPhase.FAILED,
    GroupPhase.STOPPED: GroupPhase.STOPPED,
    GroupPhase.BACKING_OFF: GroupPhase.FAILED,
}


def run_of(group: Group, at: datetime) -> RunDetail | None:
    """Return a group's newest run; ``at`` is when the group became what it is."""
    run = group.run
    if run is None or group.requested_at is None:
        return None
    outcome = _OUTCOMES.get(group.phase)
    return RunDetail(
        group=group.name,
        number=group.run_number,
        generation=run.generation,
        requested_by=group.requested_by,
        requested_at=group.requested_at,
        restart=group.restarts_used,
        started_at=group.started_at,
        ended_at=(group.ended_at or at) if outcome else None,
        outcome=outcome,
        failure=group.failure,
        command=list(run.commands[run.places[0].worker.node]),
        world_size=len(run.places),
        settings=run.settings,
        places=run.places,
    )


def runs_to_write(before: Group, after: Group, at: datetime) -> list[RunDetail]:
    """Return what a change of a group means for its history: the run that it left, and the one it is in."""
    found = []
    left = run_of(before, at)
    if left is not None and before.run_number != after.run_number and left.outcome is None:
        found.append(left.but(outcome=GroupPhase.STOPPED, ended_at=at))  # a person restarted it
    now = run_of(after, at)
    return found if now is None else [*found, now]
