"""Groups, workers and nodes as people see them. Pure."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.shapes.groups import (
    Deadline,
    GroupDocument,
    GroupPhase,
    GroupShape,
)
from platform_launch.procguard.api.shapes.workers import NodeShape, WorkerShape, WorkerStatus
from platform_launch.procguard.api.wire import (
    WorkerReport,
    WorkerState,
)
from platform_launch.procguard.core.group import Group
from platform_launch.procguard.core.phases import waiting_for
from platform_launch.procguard.core.registry import (
    DEFAULT_SILENT_AFTER_S,
    NodeEntry,
    WorkerEntry,
    WorkerGlance,
    gpus_by_index,
)
from platform_launch.procguard.core.snapshot import WorkerSnapshot

_STATUSES = {state: WorkerStatus(state.value) for state in WorkerState if state is not WorkerState.EXITED}

_SIGTERM = (-signal.SIGTERM, 128 + signal.SIGTERM)
_CRASHES = {
    code
    for number in (
        signal.SIGILL,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGKILL,
        signal.SIGSEGV,
    )
    for code in (-number, 128 + number)
}

LogSize = Callable[[str, int], int]


def silent_after_s(group: Group | None) -> float:
    """Return after how long without a heartbeat a worker counts as silent."""
    if group is None:
        return DEFAULT_SILENT_AFTER_S
    return (group.run.settings if group.active and group.run else group.settings).silent_after_s


def members_shown(group: Group) -> Sequence[WorkerName]:
    """Return the workers whose snapshots are needed to show their group."""
    waits = group.phase in (GroupPhase.PREPARING, GroupPhase.STOPPING)
    return group.workers if waits else group.silent


def group_shape(
    group: Group,
    silent: Sequence[WorkerName],
    members: Mapping[WorkerName, WorkerSnapshot],
    log_size: LogSize,
    elapsed_s: float,
    queue_place: int | None = None,
) -> GroupShape:
    """Return a group as people see it.

    ``members`` are its :func:`members_shown`; ``elapsed_s`` is the time in its phase.
    """
    failure = group.failure
    if failure and failure.worker:
        failure = failure.but(log=log_size(failure.worker, group.generation) > 0)
    degraded = group.phase is GroupPhase.RUNNING and bool(group.silent)
    shown = {name: getattr(group, name) for name in GroupDocument.model_fields}
    return GroupShape.model_construct(
        **shown
        | {
            "phase": GroupPhase.DEGRADED if degraded else group.phase,
            "failure": failure,
            "previous_failure": group.previous_failure if group.active or group.failure else None,
        },
        workers=[str(worker) for worker in group.workers],
        silent=[str(worker) for worker in silent],
        waiting_for=[str(worker) for worker in waiting_for(group, members)],
        deadline=_deadline(group, members, elapsed_s),
        queue_place=queue_place,
    )


def _deadline(
    group: Group, members: Mapping[WorkerName, WorkerSnapshot], elapsed_s: float
) -> Deadline | None:
    run = group.run
    if run is None:
        return None
    if group.phase is GroupPhase.PREPARING:
        return Deadline(what="fails", in_s=max(0.0, run.settings.ready_within_s - elapsed_s))
    if group.phase is GroupPhase.RUNNING and group.silent:
        longest_s = max(members[worker].silent_s for worker in group.silent if worker in members)
        return Deadline(what="fails", in_s=max(0.0, run.settings.fail_after_s - longest_s))
    if group.phase is GroupPhase.BACKING_OFF:
        return Deadline(what="restarts", in_s=max(0.0, group.backoff_s - elapsed_s))
    return None


def known_mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values, None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def known_sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values, None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def worker_glance(node: NodeEntry, entry: WorkerEntry, group: Group | None, *, silent: bool) -> WorkerGlance:
    """Return a worker in brief form."""
    place = group.run.place_of.get(entry.worker) if group and group.run else None
    return WorkerGlance(
        entry.text,
        entry.worker.node,
        node.node.join.hostname,
        group.name if group else None,
        worker_status(entry.text, entry.report, group, silent=silent),
        silent,
        place.rank if place else None,
        entry,
    )


def worker_status(
    worker: str, report: WorkerReport | None, group: Group | None, *, silent: bool
) -> WorkerStatus:
    """Return a worker's status. The last report of a silent worker is outdated; an exit is classified."""
    failed = silent or (report is not None and report.state in (WorkerState.EXITED, WorkerState.LOST))
    failure = group.failure if group else None
    if failed and failure is not None and failure.worker == worker:
        return WorkerStatus.FAILED_FIRST
    if silent:
        return WorkerStatus.SILENT
    if report is None:
        return WorkerStatus.UNKNOWN
    if report.state is not WorkerState.EXITED:
        return _STATUSES[report.state]
    if report.exit_code == 0 and not report.stop_requested:
        return WorkerStatus.FINISHED
    return WorkerStatus.STOPPED if _is_stopped(report, group) else WorkerStatus.FAILED


def _is_stopped(report: WorkerReport, group: Group | None) -> bool:
    """Return whether a worker was stopped: ranks stop each other, often before their agent receives the
    order.

    A crash remains a failure, as does what ended before a user stopped the group.
    """
    if report.stop_requested or report.exit_code in _SIGTERM:
        return True
    if group is None or group.run is None or report.generation != group.run.generation:
        return False
    stopped = group.phase in (GroupPhase.STOPPING, GroupPhase.STOPPED) and group.failure is None
    return stopped and report.exit_code is not None and report.exit_code not in _CRASHES


def worker_shape(
    node: NodeEntry, entry: WorkerEntry, group: Group | None, member: WorkerSnapshot
) -> WorkerShape:
    """Return a worker as people see it."""
    place = group.run.place_of.get(entry.worker) if group and group.run else None
    silent = member.silent_s > silent_after_s(group)
    report = member.report or WorkerReport(number=entry.worker.number, state=WorkerState.IDLE)
    return WorkerShape.model_construct(
        **dict(report),
        worker=entry.text,
        node=entry.worker.node,
        group=group.name if group else None,
        status=worker_status(entry.text, member.report, group, silent=silent),
        silent=silent,
        rank=place.rank if place else None,
        local_rank=place.local_rank if place else None,
        restarts=group.restarts_used if group and place else 0,
        heartbeat_age_s=None if member.report is None else member.silent_s,
        limited=node.node.join.allowed is not None,
    )


def node_shape(entry: NodeEntry, workers: Sequence[WorkerShape], silent_s: float) -> NodeShape:
    """Return a node as people see it; ``workers`` are its own."""
    return NodeShape(
        node=entry.node.name,
        hostname=entry.node.join.hostname,
        version=entry.node.join.version,
        labels=list(entry.node.join.labels),
        workers=[worker.worker for worker in workers],
        counts=dict(Counter(worker.status for worker in workers)),
        groups=sorted({worker.group for worker in workers if worker.group}),
        silent=silent_s > DEFAULT_SILENT_AFTER_S,
        heartbeat_age_s=None if entry.seen_at is None else silent_s,
        drained_by=entry.node.drained_by,
        quarantine=entry.quarantine,
        release_requested=entry.release is not None,
        limited_to=_limits(entry),
        machine=entry.machine,
        gpu_processes=list(entry.gpu_processes),
        gpus=gpus_by_index(gpu for worker in workers for gpu in worker.gpus),
    )


def _limits(node: NodeEntry) -> list[str] | None:
    allowed = node.node.join.allowed
    return None if allowed is None else list(allowed)
