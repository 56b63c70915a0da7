"""Start when free: one queue for all groups, first come, first served. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from operator import attrgetter

from platform_launch.procguard.api.ranks import WorkerKind, WorkerName
from platform_launch.procguard.api.shapes.groups import GroupPhase, GroupSettings
from platform_launch.procguard.core.group import Group
from platform_launch.procguard.core.registry import Members, WorkerSnapshot


def in_queue(groups: Iterable[Group]) -> list[Group]:
    """Return the groups in the queue, in order."""
    queued = [group for group in groups if group.phase is GroupPhase.QUEUED]
    return sorted(queued, key=lambda group: (group.queued_at or group.phase_since, group.name))


def is_free(member: WorkerSnapshot, silent_after_s: float) -> bool:
    """Return whether a worker of no group could start something now."""
    unfit = member.drained or member.quarantined or member.busy or bool(member.gpus_held)
    return member.report is not None and member.silent_s <= silent_after_s and not unfit


def allot(groups: Sequence[Group], free: Members) -> dict[str, tuple[WorkerName, ...]]:
    """Return the groups that can start now, each with its workers chosen from ``free``.

    A group that cannot start yet keeps the free workers it could use: later groups get none of them, so a
    large group is never overtaken forever.
    """
    left, starting = set(free), dict[str, tuple[WorkerName, ...]]()
    for group in groups:
        usable = [worker for worker in left if _can_use(group.settings, free[worker])]
        chosen = _chosen(group.settings, usable)
        if chosen:
            starting[group.name] = chosen
        left -= {*(chosen or usable)}
    return starting


def _can_use(settings: GroupSettings, member: WorkerSnapshot) -> bool:
    patterns, names = settings.queue_nodes.replace(",", " ").split(), (member.worker.node, *member.labels)
    return not patterns or any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _chosen(settings: GroupSettings, usable: Iterable[WorkerName]) -> tuple[WorkerName, ...]:
    """Return the workers to start with, from as few nodes as possible; none if there are too few."""
    wanted = settings.queue_workers or 0
    nodes = [list(workers) for _, workers in groupby(sorted(usable), key=attrgetter("node"))]
    if settings.kind is WorkerKind.NODE:
        nodes = [workers[:1] for workers in nodes]
    nodes.sort(key=len, reverse=True)
    chosen = [worker for workers in nodes for worker in workers][:wanted]
    return tuple(sorted(chosen)) if len(chosen) == wanted else ()
