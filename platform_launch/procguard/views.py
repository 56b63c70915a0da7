"""Groups and workers as people see them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from platform_launch.procguard.advance import waiting_for
from platform_launch.procguard.group import Group
from platform_launch.procguard.live import DEFAULT_SILENT_AFTER_S, LiveNode, LiveWorker
from platform_launch.procguard.member import Member
from platform_launch.procguard.ranks import Problem, RankTable, WorkerName
from platform_launch.procguard.shapes import (
    GroupShape,
    Phase,
    PlaceShape,
    ProblemShape,
    RankPreview,
    WorkerShape,
)
from platform_launch.procguard.wire import State

LogSize = Callable[[str, int], int]


def silent_after_s(group: Group | None) -> float:
    """Return how long a worker may be quiet before it counts as silent."""
    if group is None:
        return DEFAULT_SILENT_AFTER_S
    return (group.run.settings if group.active and group.run else group.settings).silent_after_s


def group_shape(group: Group, members: Mapping[WorkerName, Member], log_size: LogSize) -> GroupShape:
    """Return a group as people see it; ``members`` has every worker of it."""
    limit = silent_after_s(group)
    silent = [str(worker) for worker in group.workers if members[worker].silent_s > limit]
    failure = group.failure
    if failure and failure.worker:
        failure = failure.model_copy(update={"log": log_size(failure.worker, group.generation) > 0})
    degraded = group.phase is Phase.RUNNING and bool(group.silent)
    return GroupShape(
        name=group.name,
        settings=group.settings,
        phase=Phase.DEGRADED if degraded else group.phase,
        phase_since=group.phase_since,
        generation=group.generation,
        restarts_used=group.restarts_used,
        workers=[str(worker) for worker in group.workers],
        silent=silent,
        waiting_for=[str(worker) for worker in waiting_for(group, members)],
        failure=failure,
        started_at=group.started_at,
        ended_at=group.ended_at,
    )


def worker_shape(node: LiveNode, live: LiveWorker, group: Group | None, member: Member) -> WorkerShape:
    """Return a worker as people see it."""
    run = group.run if group else None
    place = run.place_of.get(live.worker) if run else None
    report = member.report
    return WorkerShape(
        worker=str(live.worker),
        node=live.worker.node,
        number=live.worker.number,
        group=group.name if group else None,
        state=report.state if report else State.IDLE,
        silent=member.silent_s > silent_after_s(group),
        generation=report.generation if report else 0,
        rank=place.rank if place else None,
        local_rank=place.local_rank if place else None,
        restarts=group.restarts_used if group and place else 0,
        exit_code=report.exit_code if report else None,
        asked=report.asked if report else False,
        reason=report.reason if report else "",
        heartbeat_age_s=None if report is None else member.silent_s,
        gpus=list(report.gpus) if report else [],
        pid=report.pid if report else None,
        hostname=node.node.hostname,
        limited_to=None if node.node.allowed is None else list(node.node.allowed),
    )


def preview(table: RankTable, backend: str) -> RankPreview:
    """Return a rank table as people see it."""
    return RankPreview(
        places=[
            PlaceShape(
                worker=str(place.worker),
                rank=place.rank,
                local_rank=place.local_rank,
                node_rank=place.topology.node_rank,
                world_size=place.world_size,
                environment=place.environment(backend),
            )
            for place in table.places
        ],
        idle=[str(worker) for worker in table.idle],
        problems=[problem_shape(problem) for problem in table.problems],
        notes=[problem_shape(note) for note in table.notes],
    )


def problem_shape(problem: Problem) -> ProblemShape:
    """Return a problem as people see it."""
    return ProblemShape(code=problem.code, text=problem.text, hint=problem.hint, values=dict(problem.values))
