"""The use of workers, nodes and groups: the last hour in memory, days in the database.

Memory is bounded: a ring of numbers for each series of each subject, 720 bytes. Running groups that hardly
use their GPUs are reported, and stopped if their settings ask for it.
"""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone

from platform_launch.procguard.api.shapes.groups import GroupPhase
from platform_launch.procguard.api.shapes.history import Chart, ChartKind
from platform_launch.procguard.api.shapes.workers import WorkerStatus
from platform_launch.procguard.control.control import SERVER, Control
from platform_launch.procguard.control.queries import Queries, known_mean, known_sum
from platform_launch.procguard.core.registry import NodeGlance, WorkerGlance
from platform_launch.procguard.database.store import Measurements
from platform_launch.sentences import sentence


class IdleWatch:
    """Checks the GPU use of each running group, in percent, whenever it was measured."""

    def __init__(self, control: Control, clock: Callable[[], float] = time.monotonic) -> None:
        self._control = control
        self._clock = clock
        self._since: dict[str, tuple[int, float]] = {}
        self._reported: set[tuple[str, int]] = set()

    def check(self, use: Mapping[str, float | None]) -> None:
        """Report the groups that have used too little for too long. Raises Unavailable."""
        now = self._clock()
        for group in self._control.queries.groups():
            settings, run = group.settings, (group.name, group.run_number)
            percent = use.get(group.name)
            busy = percent is None or percent >= settings.idle_percent  # unknown use is not idle
            if group.phase is not GroupPhase.RUNNING or busy or not settings.idle_minutes:
                self._since.pop(group.name, None)
                continue
            known, since = self._since.setdefault(group.name, (group.run_number, now))
            if known != group.run_number:
                self._since[group.name] = (group.run_number, now)
            elif now - since >= 60 * settings.idle_minutes and run not in self._reported:
                self._reported.add(run)
                detail = sentence(
                    "idle-gpus",
                    percent=f"{settings.idle_percent:g}",
                    minutes=f"{settings.idle_minutes:g}",
                )
                self._control.record(SERVER, "idle", group.name, detail)
                if settings.idle_stop:
                    self._control.stop(group.name, SERVER)


EVERY_S = 20.0
_SAMPLES = 180  # an hour
# Samples per row in the database: ten minutes of a group, an hour of a node.
_THINNED = {ChartKind.GROUP: 30, ChartKind.NODE: 180}
_KEPT_DAYS = {ChartKind.GROUP: 30, ChartKind.NODE: 7}
_MOST_RANKS = 32
_NOTHING = float("nan")
_GROUP = ChartKind.GROUP

Values = Mapping[str, float | None]
Subject = tuple[ChartKind, str]


class History:
    """The samples of :meth:`sample`, which is called every EVERY_S. Thread-safe."""

    def __init__(
        self, queries: Queries, measurements: Measurements, now: Callable[[], float] = time.time
    ) -> None:
        self._queries = queries
        self._measurements = measurements
        self._now = now
        self._times: deque[float] = deque(maxlen=_SAMPLES)
        self._sample_count = 0
        self._rings: dict[Subject, dict[str, array[float]]] = {}
        self._members: dict[str, list[tuple[str, int | None]]] = {}
        self._runs: dict[str, tuple[int, float, int]] = {}
        self._lock = threading.Lock()

    def gpu_use(self) -> dict[str, float | None]:
        """Return the current GPU use of each group in percent; None if unknown."""
        with self._lock:
            return {name: self._last(rings) for (kind, name), rings in self._rings.items() if kind is _GROUP}

    def run_use(self, group: str, run: int) -> float | None:
        """Return the mean GPU use of a group's run since this server started; None if unknown."""
        number, total, count = self._runs.get(group, (0, 0.0, 0))
        return total / count if number == run and count else None

    def chart(self, kind: ChartKind, name: str, *, days: bool = False) -> Chart:
        """Return the series of a worker, node or group; empty if nothing was measured."""
        if days:
            rows = self._measurements.read(kind, name)
            names = sorted({series for _, values in rows for series in values})
            times = [at.timestamp() for at, _ in rows]
            return Chart(times=times, series={one: [values.get(one) for _, values in rows] for one in names})
        with self._lock:
            rings = self._rings.get((kind, name), {})
            times = list(self._times)
            return Chart(times=times, series={one: self._line(ring) for one, ring in sorted(rings.items())})

    def ranks(self, group: str, series: str) -> Chart:
        """Return one series of each worker of a group by rank; if there are many, the lowest ones
        (stragglers).
        """
        with self._lock:
            lines = {}
            for worker, rank in self._members.get(group, []):
                ring = self._rings.get((ChartKind.WORKER, worker), {}).get(series)
                if ring is not None and rank is not None:
                    lines[f"{rank} · {worker}"] = self._line(ring)
            times = list(self._times)
        if len(lines) > _MOST_RANKS:
            lowest = sorted(lines, key=lambda name: _mean(lines[name][-15:]))[:_MOST_RANKS]
            lines = {name: lines[name] for name in lines if name in lowest}
        return Chart(times=times, series=lines)

    def sample(self) -> None:
        """Take a sample, and write rows that are due. If it raises Unavailable, the last hour is still
        complete.
        """
        nodes = self._queries.glances()
        groups = self._queries.groups()
        names = [group.name for group in groups]
        of_workers: dict[str, Values] = {}
        of_nodes: dict[str, Values] = {}
        members: dict[str, list[WorkerGlance]] = {}
        for node in nodes:
            of_nodes[node.node] = _of_node(node)
            for worker in node.workers:
                of_workers[worker.worker] = _of_worker(worker)
                if worker.group:
                    members.setdefault(worker.group, []).append(worker)
        found: dict[Subject, Values] = {(ChartKind.WORKER, name): one for name, one in of_workers.items()}
        found |= {(ChartKind.NODE, name): one for name, one in of_nodes.items()}
        for name in names:
            some = members.get(name, [])
            machines = [of_nodes[node] for node in {one.node for one in some} if node in of_nodes]
            found[ChartKind.GROUP, name] = _of_group([of_workers[one.worker] for one in some], machines)
        for group in groups:
            use = found[_GROUP, group.name].get("gpu")
            if use is not None and group.phase in (GroupPhase.RUNNING, GroupPhase.DEGRADED):
                number, total, count = self._runs.get(group.name, (0, 0.0, 0))
                before = (total, count) if number == group.run_number else (0.0, 0)
                self._runs[group.name] = (group.run_number, before[0] + use, before[1] + 1)
        self._runs = {name: run for name, run in self._runs.items() if (_GROUP, name) in found}
        with self._lock:
            self._store(found)
            self._members = {
                name: sorted(
                    ((one.worker, one.rank) for one in some), key=lambda pair: (pair[1] is None, pair[1])
                )
                for name, some in members.items()
            }
        self._write_due()

    def _store(self, found: Mapping[Subject, Values]) -> None:
        place = self._sample_count % _SAMPLES
        self._times.append(self._now())
        for subject in self._rings.keys() - found.keys():
            del self._rings[subject]
        for subject, values in found.items():
            rings = self._rings.setdefault(subject, {})
            for series, value in values.items():
                if value is not None and series not in rings:
                    rings[series] = array("f", [_NOTHING]) * _SAMPLES
            for series, ring in rings.items():
                value = values.get(series)
                ring[place] = _NOTHING if value is None else value
        self._sample_count += 1

    def _last(self, rings: Mapping[str, array[float]]) -> float | None:
        ring = rings.get("gpu")
        value = (
            ring[(self._sample_count - 1) % _SAMPLES] if ring is not None and self._sample_count else _NOTHING
        )
        return None if math.isnan(value) else value

    def _line(self, ring: array[float]) -> list[float | None]:
        place = self._sample_count % _SAMPLES
        ordered = [*ring[place:], *ring[:place]] if self._sample_count >= _SAMPLES else list(ring[:place])
        return [None if math.isnan(value) else round(value, 3) for value in ordered]

    def _write_due(self) -> None:
        for kind, count in _THINNED.items():
            if self._sample_count % count:
                continue
            with self._lock:
                rows = [
                    (name, {series: known_mean(self._line(ring)[-count:]) for series, ring in rings.items()})
                    for (of, name), rings in self._rings.items()
                    if of is kind
                ]
            at = datetime.fromtimestamp(self._now(), timezone.utc)
            self._measurements.write(at, ((kind, name, values) for name, values in rows if values))
            self._measurements.delete_older(kind, _KEPT_DAYS[kind])


def _of_worker(worker: WorkerGlance) -> Values:
    report = worker.report
    if worker.silent or report is None:
        return {}
    return {
        "gpu": known_mean([gpu.utilization_percent for gpu in report.gpus]),
        "gpu_memory": known_sum([gpu.memory_used_gib for gpu in report.gpus]),
        "steps": report.steps_per_s if worker.status is WorkerStatus.RUNNING else None,
    }


def _of_node(node: NodeGlance) -> Values:
    if node.silent:
        return {}
    gpus, machine = node.gpus, node.entry.machine
    return {
        "gpu": known_mean([gpu.utilization_percent for gpu in gpus]),
        "gpu_memory": known_sum([gpu.memory_used_gib for gpu in gpus]),
        "cpu": machine.cpu_percent if machine else None,
        "memory": machine.memory_used_gib if machine else None,
    }


def _of_group(values: list[Values], machines: list[Values]) -> Values:
    if not values:
        return {}
    return {
        "gpu": known_mean([value.get("gpu") for value in values]),
        "gpu_lowest": min((one for value in values if (one := value.get("gpu")) is not None), default=None),
        "gpu_memory": known_sum([value.get("gpu_memory") for value in values]),
        "steps": known_mean([value.get("steps") for value in values]),
        "cpu": known_mean([value.get("cpu") for value in machines]),
        "memory": known_mean([value.get("memory") for value in machines]),
    }


def _mean(values: Iterable[float | None]) -> float:
    found = known_mean(values)
    return float("inf") if found is None else found
