"""The history of a group: one record a run, as it stands now or ended. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from platform_launch.procguard.api.shapes.groups import GroupFailure, GroupPhase
from platform_launch.procguard.api.shapes.runs import PlacedWorker, RunDetail, RunShape
from platform_launch.procguard.core.group import Group, GroupRun

_OUTCOMES = {
    GroupPhase.FINISHED: GroupPhase.FINISHED,
    GroupPhase.FAILED: GroupPhase.FAILED,
    GroupPhase.STOPPED: GroupPhase.STOPPED,
    GroupPhase.BACKING_OFF: GroupPhase.FAILED,
}


@dataclass(frozen=True)
class RunRecord:
    """One run of a group. ``restart``: which automatic restart it is, 0 where a person asked for it.

    ``outcome`` is finished, failed or stopped; None while it is under way.
    """

    group: str
    number: int
    run: GroupRun
    requested_by: str
    requested_at: datetime
    restart: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: GroupPhase | None = None
    failure: GroupFailure | None = None


def record_of(group: Group, at: datetime) -> RunRecord | None:
    """Return the record of a group's newest run; ``at`` is when the group became what it is."""
    if group.run is None or group.requested_at is None:
        return None
    outcome = _OUTCOMES.get(group.phase)
    return RunRecord(
        group=group.name,
        number=group.run_number,
        run=group.run,
        requested_by=group.requested_by,
        requested_at=group.requested_at,
        restart=group.restarts_used,
        started_at=group.started_at,
        ended_at=(group.ended_at or at) if outcome else None,
        outcome=outcome,
        failure=group.failure,
    )


def records_of(before: Group, after: Group, at: datetime) -> list[RunRecord]:
    """Return what a change of a group means for its history: the run that it left, and the one it is in."""
    found = []
    left = record_of(before, at)
    if left is not None and before.run_number != after.run_number and left.outcome is None:
        found.append(replace(left, outcome=GroupPhase.STOPPED, ended_at=at))  # a person restarted it
    now = record_of(after, at)
    return found if now is None else [*found, now]


def run_shape(record: RunRecord) -> RunShape:
    """Return a run as people see it in a list."""
    first = record.run.places[0]
    return RunShape(
        group=record.group,
        number=record.number,
        generation=record.run.generation,
        requested_by=record.requested_by,
        requested_at=record.requested_at,
        restart=record.restart,
        started_at=record.started_at,
        ended_at=record.ended_at,
        outcome=record.outcome,
        failure=record.failure,
        command=list(record.run.commands[first.worker.node]),
        world_size=first.world_size,
    )


def run_detail(record: RunRecord) -> RunDetail:
    """Return a run as people see it alone: with its settings and its rank table."""
    placed = [
        PlacedWorker(
            worker=str(place.worker),
            rank=place.rank,
            local_rank=place.local_rank,
            node_rank=place.topology.node_rank,
        )
        for place in record.run.places
    ]
    return RunDetail(**dict(run_shape(record)), settings=record.run.settings, places=placed)
