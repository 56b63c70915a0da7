"""Lists of groups, nodes and workers: filtered, paged, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Generic, TypeVar

from platform_launch.procguard.api.shapes.groups import GroupShape
from platform_launch.procguard.api.shapes.workers import WorkerStatus
from platform_launch.procguard.api.wire import ForeignGpuProcess, GpuReport
from platform_launch.procguard.control.queries import Queries, known_mean, known_sum
from platform_launch.procguard.core.registry import NodeGlance, WorkerGlance, natural

Row = TypeVar("Row")
OtherRow = TypeVar("OtherRow")

PAGE_SIZE = 100
NO_GROUP = "-"
"""The filter for workers in no group; no group can have this name."""
STATES = tuple(status.value for status in WorkerStatus)
# The order in a tally: first what needs attention, then by activity.
_ORDER = (
    *(WorkerStatus.FAILED_FIRST, WorkerStatus.FAILED, WorkerStatus.LOST, WorkerStatus.REFUSED),
    *(WorkerStatus.SILENT, WorkerStatus.RUNNING, WorkerStatus.READY, WorkerStatus.STOPPING),
    *(WorkerStatus.FINISHED, WorkerStatus.STOPPED, WorkerStatus.UNKNOWN, WorkerStatus.IDLE),
)


@dataclass(frozen=True)
class Overview:
    """Groups and nodes with their workers at one moment; counts are computed once."""

    groups: Sequence[GroupShape] = ()
    nodes: Sequence[NodeGlance] = ()

    @cached_property
    def workers(self) -> Sequence[WorkerGlance]:
        """All workers by node and number."""
        return [worker for node in self.nodes for worker in node.workers]

    @cached_property
    def totals(self) -> Totals:
        """The whole cluster in a few numbers."""
        return totals(self.nodes)

    @cached_property
    def gpu_processes(self) -> dict[str, list[ForeignGpuProcess]]:
        """Processes of other users on the GPUs of each group."""
        found: dict[str, list[ForeignGpuProcess]] = {}
        for node in self.nodes:
            for worker in node.workers if node.entry.gpu_processes else ():
                for process in node.entry.gpu_processes:
                    if worker.group and process.gpu in worker.gpu_indexes:
                        found.setdefault(worker.group, []).append(process)
        return found

    @cached_property
    def counts(self) -> dict[str, list[tuple[str, int]]]:
        """The number of workers of each group by state, failures first."""
        return counts_by_group(self.workers)


class SharedOverview:
    """The overview of the newest version, computed once for all readers."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._lock = Lock()
        self._version = -1
        self._overview = Overview()

    def read(self) -> Overview:
        """Return the current overview."""
        with self._lock:
            version = self._queries.version
            if version != self._version:
                self._overview = Overview(self._queries.groups(), self._queries.glances())
                self._version = version
            return self._overview


@dataclass(frozen=True)
class NodeFilter:
    """Selects and orders nodes."""

    text: str = ""
    state: str = ""
    sort: str = ""

    @classmethod
    def read(cls, query: Mapping[str, str]) -> NodeFilter:
        """Read a query; unknown values select everything."""
        state, sort = query.get("state", ""), query.get("sort", "")
        text = query.get("text", "").strip()[:200]
        return cls(text, state if state in NODE_STATES else "", sort if sort in NODE_SORTS else "")

    def matching(self, nodes: Sequence[NodeGlance]) -> Sequence[NodeGlance]:
        """Return the selected nodes in the requested order."""
        text = self.text.lower()
        if text:
            nodes = [node for node in nodes if text in _text_of(node)]
        if self.state:
            nodes = [node for node in nodes if self.state in _states_of(node)]
        key = NODE_SORTS.get(self.sort)
        return sorted(nodes, key=key, reverse=True) if key else nodes


def _text_of(node: NodeGlance) -> str:
    join = node.entry.node.join
    return " ".join((node.node, join.hostname, *node.groups, *join.labels)).lower()


def _states_of(node: NodeGlance) -> set[str]:
    """Return the words for a node's state; several may apply."""
    statuses = {worker.status for worker in node.workers}
    marks = {
        "drained": bool(node.entry.node.drained_by),
        "quarantined": node.entry.quarantine is not None,
        "failed": not statuses.isdisjoint((WorkerStatus.FAILED, WorkerStatus.FAILED_FIRST)),
    }
    words = {"silent" if node.silent else "heard", "busy" if WorkerStatus.RUNNING in statuses else "free"}
    return words | {word for word, holds in marks.items() if holds}


NODE_STATES = ("busy", "free", "heard", "silent", "quarantined", "drained", "failed")


def _gpu_percent(node: NodeGlance) -> float:
    percent = known_mean(gpu.utilization_percent for gpu in node.gpus)
    return -1.0 if percent is None else percent


NODE_SORTS: Mapping[str, Callable[[NodeGlance], float]] = {
    "gpu": _gpu_percent,
    "cpu": lambda node: node.entry.machine.cpu_percent if node.entry.machine else -1.0,
    "memory": lambda node: node.entry.machine.memory_used_gib if node.entry.machine else -1.0,
    "heartbeat": lambda node: -(node.entry.seen_at or float("-inf")),
}


@dataclass(frozen=True)
class Totals:
    """The whole cluster in a few numbers. A GPU is busy if a worker that holds it runs.

    The use of GPUs of silent nodes is unknown.
    """

    nodes: int
    silent_nodes: int
    drained_nodes: int
    quarantined_nodes: int
    workers: dict[WorkerStatus, int]
    gpus: int
    busy_gpus: int
    silent_gpus: int

    @property
    def free_gpus(self) -> int:
        """GPUs that could be used now."""
        return self.gpus - self.busy_gpus - self.silent_gpus


def _gpu_count(workers: Sequence[WorkerGlance]) -> int:
    return len({gpu.index for worker in workers if worker.report for gpu in worker.report.gpus})


def totals(nodes: Sequence[NodeGlance]) -> Totals:
    """Count nodes, workers by status, and GPUs."""
    counts = Counter(worker.status for node in nodes for worker in node.workers)
    gpus, busy, silent = 0, 0, 0
    for node in nodes:
        held = _gpu_count(node.workers)
        gpus += held
        if node.silent:
            silent += held
            continue
        running = [worker for worker in node.workers if worker.status is WorkerStatus.RUNNING]
        busy += held if len(running) == len(node.workers) else _gpu_count(running)
    return Totals(
        nodes=len(nodes),
        silent_nodes=sum(node.silent for node in nodes),
        drained_nodes=sum(bool(node.entry.node.drained_by) for node in nodes),
        quarantined_nodes=sum(node.entry.quarantine is not None for node in nodes),
        workers={status: counts[status] for status in _ORDER if counts[status]},
        gpus=gpus,
        busy_gpus=busy,
        silent_gpus=silent,
    )


@dataclass(frozen=True)
class WorkerFilter:
    """Selects workers. Empty fields select all."""

    text: str = ""
    state: str = ""
    group: str = ""

    @classmethod
    def read(cls, query: Mapping[str, str]) -> WorkerFilter:
        """Read a query; unknown values select everything."""
        state = query.get("state", "")
        text = query.get("text", "").strip()[:200]
        return cls(text, state if state in STATES else "", query.get("group", "")[:64])

    def matching(self, workers: Sequence[WorkerGlance]) -> Sequence[WorkerGlance]:
        """Return the selected workers, in the given order."""
        text = self.text.lower()
        if text:
            workers = [
                one for one in workers if text in f"{one.worker} {one.hostname} {one.group or ''}".lower()
            ]
        if self.group:
            workers = [one for one in workers if self.group == (one.group or NO_GROUP)]
        if self.state:
            wanted = {WorkerStatus(self.state)}
            if WorkerStatus.FAILED in wanted:
                wanted.add(WorkerStatus.FAILED_FIRST)
            workers = [one for one in workers if one.status in wanted]
        return workers


@dataclass(frozen=True)
class ListPage(Generic[Row]):
    """A page of a list. ``first`` and ``last`` count from 1."""

    rows: list[Row]
    number: int
    pages: int
    total: int

    def of(self, rows: list[OtherRow]) -> ListPage[OtherRow]:
        """Return the same page with other rows."""
        return ListPage(rows, self.number, self.pages, self.total)

    @property
    def first(self) -> int:
        """The position of the first row in the whole list."""
        return (self.number - 1) * PAGE_SIZE + 1 if self.rows else 0

    @property
    def last(self) -> int:
        """The position of the last row in the whole list."""
        return self.first + len(self.rows) - 1 if self.rows else 0


def paged(workers: Sequence[Row], wanted: str) -> ListPage[Row]:
    """Return the requested page, or the nearest one."""
    pages = max(1, -(-len(workers) // PAGE_SIZE))
    number = min(max(1, int(wanted)), pages) if wanted.isdecimal() and len(wanted) < 9 else 1
    start = (number - 1) * PAGE_SIZE
    return ListPage(list(workers[start : start + PAGE_SIZE]), number, pages, len(workers))


def by_rank(workers: Sequence[WorkerGlance]) -> list[WorkerGlance]:
    """Return the workers of a group by rank; those without one last, in the given order."""
    return sorted(workers, key=lambda worker: (worker.rank is None, worker.rank or 0))


PHASES = (
    *("failed", "degraded", "backing-off", "stopping", "preparing", "queued", "running"),
    *("finished", "stopped", "idle"),
)
"""What needs attention comes first."""


def failed_first(groups: Sequence[GroupShape]) -> list[GroupShape]:
    """Return groups by what needs attention, then in natural order of names."""
    return sorted(groups, key=lambda group: (PHASES.index(group.phase.value), natural(group.name)))


def counts_by_group(workers: Sequence[WorkerGlance]) -> dict[str, list[tuple[str, int]]]:
    """Return the number of workers of each group by state, failures first."""
    counts: dict[str, Counter[WorkerStatus]] = {}
    for worker in workers:
        if worker.group is not None:
            counts.setdefault(worker.group, Counter())[worker.status] += 1
    return {
        group: [(status.value, states[status]) for status in _ORDER if states[status]]
        for group, states in counts.items()
    }


@dataclass(frozen=True)
class GpuSummary:
    """The GPUs of a worker in one line: their mean use and total memory."""

    count: int
    percent: float | None
    used_gib: float | None
    total_gib: float | None


def gpu_use(gpus: Sequence[GpuReport]) -> GpuSummary | None:
    """Summarize a worker's GPUs; None if it has none."""
    if not gpus:
        return None
    return GpuSummary(
        len(gpus),
        known_mean(gpu.utilization_percent for gpu in gpus),
        known_sum(gpu.memory_used_gib for gpu in gpus),
        known_sum(gpu.memory_total_gib for gpu in gpus),
    )
