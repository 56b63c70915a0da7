"""Read access to groups, workers, nodes, runs and events as people see them."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.refused import NotFound
from platform_launch.procguard.api.shapes.groups import (
    Deadline,
    GroupDocument,
    GroupPhase,
    GroupSettings,
    GroupShape,
    RankPreview,
    RunDetail,
    RunShape,
)
from platform_launch.procguard.api.shapes.history import AuditEvent, EventFilter
from platform_launch.procguard.api.shapes.logs import LogRun
from platform_launch.procguard.api.shapes.workers import NodeShape, WorkerShape, WorkerStatus
from platform_launch.procguard.api.wire import (
    WorkerReport,
    WorkerState,
)
from platform_launch.procguard.core.freeze import rank_table
from platform_launch.procguard.core.group import Group
from platform_launch.procguard.core.phases import waiting_for
from platform_launch.procguard.core.queue import in_queue
from platform_launch.procguard.core.registry import (
    DEFAULT_SILENT_AFTER_S,
    Members,
    Moment,
    NodeEntry,
    NodeGlance,
    Registry,
    ServerClock,
    WorkerEntry,
    WorkerGlance,
    WorkerSnapshot,
    gpus_by_index,
)
from platform_launch.procguard.database.store import Ledger

_STATUSES: Mapping[WorkerState, WorkerStatus] = {
    state: WorkerStatus(state.value) for state in WorkerState if state is not WorkerState.EXITED
}

_ENDED = (WorkerState.EXITED, WorkerState.LOST)
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

Found = TypeVar("Found")
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
    state = report.state if report else None
    failure = group.failure if group else None
    if failure is not None and failure.worker == worker and (silent or state in _ENDED):
        return WorkerStatus.FAILED_FIRST
    if silent:
        return WorkerStatus.SILENT
    if report is None or state is None:
        return WorkerStatus.UNKNOWN
    if (status := _STATUSES.get(state)) is not None:
        return status
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


def present(find: Callable[[str], Found], names: Iterable[str]) -> list[Found]:
    """Return those that ``find`` finds: a node may have been removed just now."""
    found = []
    for name in names:
        with suppress(NotFound):
            found.append(find(name))
    return found


_EVERY_EVENT = EventFilter()


class Queries:
    """Read-only; thread-safe without a lock.

    ``log_size`` returns how many bytes of a worker's log of a generation the server has. Methods that read
    the database raise Unavailable.
    """

    def __init__(self, ledger: Ledger, registry: Registry, clock: ServerClock, log_size: LogSize) -> None:
        self._ledger = ledger
        self._registry = registry
        self._clock = clock
        self._log_size = log_size
        self._version = 0
        self._counting = threading.Lock()

    @property
    def version(self) -> int:
        """A number that increases with every visible change; for heartbeats alone at most once a second."""
        return self._version

    def changed(self) -> None:
        """Count a visible change."""
        with self._counting:
            self._version += 1

    def groups(self) -> list[GroupShape]:
        """Return all groups by name."""
        return [self._shape(group) for _, group in sorted(self._ledger.world.groups.items())]

    def group(self, name: str) -> GroupShape:
        """Return a group. Raises NotFound."""
        return self._shape(self._ledger.world.group(name))

    def worker_names(self) -> list[str]:
        """Return the names of all workers by node and number."""
        return [worker.text for _, worker in self._registry.all_workers()]

    def node_names(self) -> list[str]:
        """Return the names of all nodes in order."""
        return [entry.node.name for entry in self._registry.in_order()]

    def glances(self) -> list[NodeGlance]:
        """Return all nodes by name in brief form, each with its workers by number."""
        world, moment = self._ledger.world, self._clock.moment()
        limits = {name: silent_after_s(group) for name, group in world.groups.items()}
        nodes = []
        for entry in self._registry.in_order():
            workers = []
            for worker in entry.workers.values():
                row = world.workers.get(worker.worker)
                group = world.groups.get(row.group) if row and row.group else None
                limit_s = limits[group.name] if group else DEFAULT_SILENT_AFTER_S
                silent = moment.silent_s(worker.seen_at) > limit_s
                workers.append(worker_glance(entry, worker, group, silent=silent))
            silent = moment.silent_s(entry.seen_at) > DEFAULT_SILENT_AFTER_S
            nodes.append(NodeGlance(entry, silent, workers))
        return nodes

    def worker(self, worker: str) -> WorkerShape:
        """Return a worker. Raises NotFound."""
        name = self._ledger.world.row(worker).worker
        node = self._registry.nodes.get(name.node)
        entry = node.workers.get(name.number) if node else None
        if node is None or entry is None:
            raise NotFound("no-worker", worker=worker[:80])  # its node is being removed
        return self._worker(node, entry, self._clock.moment())

    def node(self, name: str) -> NodeShape:
        """Return a node. Raises NotFound."""
        entry, moment = self._registry.node(name), self._clock.moment()
        workers = [self._worker(entry, worker, moment) for worker in entry.workers.values()]
        return node_shape(entry, workers, moment.silent_s(entry.seen_at))

    def preview(self, name: str, settings: GroupSettings | None = None) -> RankPreview:
        """Return the rank table of the next start, with these settings or the group's own. Raises
        NotFound.
        """
        group = self._ledger.world.group(name)
        wanted = settings or group.settings
        table = rank_table(wanted, group.workers, self.members(group.workers))
        environments = [
            {**wanted.environment, **table.environment(place, wanted.backend)} for place in table.places
        ]
        return RankPreview(**dict(table), environments=environments)

    def runs(self, name: str, before: int | None = None, limit: int = 50, cause: str = "") -> list[RunShape]:
        """Return the newest runs of a group, or those before one, newest first. Raises NotFound.

        ``cause``: only those whose failure contains this text.
        """
        self._ledger.world.group(name)
        return self._ledger.store.runs(name, before, limit, cause)

    def run(self, name: str, number: int) -> RunDetail:
        """Return a run of a group. Raises NotFound."""
        run = self._ledger.store.run(name, number)
        if run is None:
            raise NotFound("no-run", number=str(number), group=name[:80])
        return run

    def run_names(self, worker: str, generations: Sequence[int]) -> list[LogRun]:
        """Return the runs of a worker's generations, if known."""
        return self._ledger.store.runs_of(worker, generations)

    def events(
        self, before: int | None = None, limit: int = 100, chosen: EventFilter = _EVERY_EVENT
    ) -> list[AuditEvent]:
        """Return the newest selected entries of the audit log, or those before one, newest first."""
        return self._ledger.store.events(before, limit, chosen)

    def members(self, workers: Iterable[WorkerName]) -> Members:
        """Return a snapshot of workers at this moment."""
        moment = self._clock.moment()
        return {worker: self._member(worker, moment) for worker in workers}

    def _member(self, worker: WorkerName, moment: Moment) -> WorkerSnapshot:
        row = self._ledger.world.workers.get(worker)
        return self._registry.member(worker, row.generation if row else 0, moment)

    def _worker(self, node: NodeEntry, entry: WorkerEntry, moment: Moment) -> WorkerShape:
        group = self._ledger.world.group_of(entry.worker)
        return worker_shape(node, entry, group, self._member(entry.worker, moment))

    def _shape(self, group: Group) -> GroupShape:
        moment, limit_s = self._clock.moment(), silent_after_s(group)
        silent = [
            worker for worker in group.workers if moment.silent_s(self._registry.seen_at(worker)) > limit_s
        ]
        members = self.members(members_shown(group))
        place = None
        if group.phase is GroupPhase.QUEUED:
            place = 1 + [one.name for one in in_queue(self._ledger.world.groups.values())].index(group.name)
        elapsed_s = self._clock.in_phase_s(group)
        return group_shape(group, silent, members, self._log_size, elapsed_s, place)
