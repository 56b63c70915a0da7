"""What the pages show of groups and workers: filtered, paged, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from platform_launch.procguard.shapes import GroupShape, Phase, WorkerShape
from platform_launch.procguard.wire import Gpu, State

if TYPE_CHECKING:
    from platform_launch.procguard.control import Control

PAGE_SIZE = 100
SILENT = "silent"
NO_GROUP = "-"
"""The filter for workers of no group; no group can be named so."""
STATES = (*(state.value for state in State), SILENT)
ACTIVE = frozenset({Phase.PREPARING, Phase.RUNNING, Phase.DEGRADED, Phase.STOPPING, Phase.BACKING_OFF})
_ORDER = ("running", "ready", "stopping", "exited", "failed", "refused", "lost", "silent", "idle")


class Snapshot:
    """Groups and workers of one version, made once for everybody who looks."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._lock = Lock()
        self._version = -1
        self._groups: list[GroupShape] = []
        self._workers: list[WorkerShape] = []

    def read(self) -> tuple[list[GroupShape], list[WorkerShape]]:
        """Return all groups and all workers as they are now."""
        with self._lock:
            version = self._control.version
            if version != self._version:
                self._groups, self._workers = self._control.groups(), self._control.workers()
                self._version = version
            return self._groups, self._workers


@dataclass(frozen=True)
class Filter:
    """Which workers to show. Empty fields leave all in."""

    text: str = ""
    state: str = ""
    group: str = ""

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Filter:
        """Read a query; what is unknown in it filters nothing."""
        state = query.get("state", "")
        text = query.get("text", "").strip()[:200]
        return cls(text, state if state in STATES else "", query.get("group", "")[:64])

    def matching(self, workers: Sequence[WorkerShape]) -> list[WorkerShape]:
        """Return the workers that match, in the order given."""
        text = self.text.lower()
        return [
            worker
            for worker in workers
            if (not text or text in f"{worker.worker} {worker.hostname} {worker.group or ''}".lower())
            and (not self.state or self.state in (worker.state.value, SILENT if worker.silent else ""))
            and (not self.group or self.group == (worker.group or NO_GROUP))
        ]


@dataclass(frozen=True)
class WorkerPage:
    """The part of a list of workers that fits a page. ``first`` and ``last`` count from 1."""

    rows: list[WorkerShape]
    number: int
    pages: int
    total: int

    @property
    def first(self) -> int:
        """The place of the first row in the whole list."""
        return (self.number - 1) * PAGE_SIZE + 1 if self.rows else 0

    @property
    def last(self) -> int:
        """The place of the last row in the whole list."""
        return self.first + len(self.rows) - 1 if self.rows else 0


def paged(workers: Sequence[WorkerShape], wanted: str) -> WorkerPage:
    """Return the wanted page, or the nearest there is."""
    pages = max(1, -(-len(workers) // PAGE_SIZE))
    number = min(max(1, int(wanted)), pages) if wanted.isdecimal() and len(wanted) < 9 else 1
    start = (number - 1) * PAGE_SIZE
    return WorkerPage(list(workers[start : start + PAGE_SIZE]), number, pages, len(workers))


def by_rank(workers: Sequence[WorkerShape]) -> list[WorkerShape]:
    """Return the workers of a group by rank; those without one last, in the order given."""
    return sorted(workers, key=lambda worker: (worker.rank is None, worker.rank or 0))


def shown_state(worker: WorkerShape) -> str:
    """Return the word for a worker's state: a silent one's last report is not news, an exit says which."""
    if worker.silent:
        return SILENT
    if worker.state is State.EXITED and worker.exit_code and not worker.asked:
        return "failed"
    return worker.state.value


def counts_by_group(workers: Sequence[WorkerShape]) -> dict[str, list[tuple[str, int]]]:
    """Return for each group how many of its workers are in which state, the livelier states first."""
    counts: dict[str, Counter[str]] = {}
    for worker in workers:
        if worker.group is not None:
            counts.setdefault(worker.group, Counter())[shown_state(worker)] += 1
    return {
        group: sorted(states.items(), key=lambda item: _ORDER.index(item[0]))
        for group, states in counts.items()
    }


@dataclass(frozen=True)
class GpuUse:
    """The GPUs of a worker as one line: their mean use, the memory of all."""

    count: int
    percent: float | None
    used_gib: float | None
    total_gib: float | None


def gpu_use(gpus: Sequence[Gpu]) -> GpuUse | None:
    """Sum up a worker's GPUs; None where it has none."""
    if not gpus:
        return None
    percents = [gpu.utilization_percent for gpu in gpus if gpu.utilization_percent is not None]
    used = [gpu.memory_used_gib for gpu in gpus if gpu.memory_used_gib is not None]
    total = [gpu.memory_total_gib for gpu in gpus if gpu.memory_total_gib is not None]
    return GpuUse(
        len(gpus),
        sum(percents) / len(percents) if percents else None,
        sum(used) if used else None,
        sum(total) if total else None,
    )
