"""Prometheus metrics. Counts are public; series by group, node and GPU require a login."""

from __future__ import annotations

import threading
import time
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from platform_launch.procguard.api.shapes.groups import GroupPhase
from platform_launch.procguard.api.wire import WorkerState
from platform_launch.procguard.control.queries import Queries, known_mean
from platform_launch.procguard.core.registry import NodeGlance, WorkerGlance

_KEPT_S = 1.0


class Metrics:
    """Counts events, and queries the current state when it is read."""

    def __init__(self, queries: Queries) -> None:
        self._registry = CollectorRegistry()
        self.heartbeats = self._counter("procguard_heartbeats", "Answered heartbeats of agents.")
        self.refused = self._counter("procguard_heartbeats_refused", "Refused heartbeats of agents.")
        self.log_bytes = self._counter("procguard_log_bytes", "Bytes of log that agents sent.")
        self.log_refused = self._counter(
            "procguard_log_refused", "Chunks of log refused because the disk was full."
        )
        self.logins = self._by_result(
            "procguard_logins", "Login attempts, by result.", "succeeded", "failed", "throttled"
        )
        self.joins = self._by_result(
            "procguard_joins",
            "Join attempts of agents, by result.",
            *("succeeded", "failed", "refused", "throttled"),
        )
        self.failed = self._counter("procguard_groups_failed", "Groups that failed.")
        self.notices = self._by_result("procguard_notices", "Notices, by result.", "sent", "lost")
        self._registry.register(_CurrentState(queries))
        self._named = CollectorRegistry()
        self._named.register(_ByName(queries))
        self._lock = threading.Lock()
        self._texts: dict[CollectorRegistry, tuple[float, bytes]] = {}

    def text(self, *, named: bool = False) -> bytes:
        """Return the metrics in Prometheus' text format, with names if ``named``; at most a second old."""
        with self._lock:
            return self._text(self._registry) + (self._text(self._named) if named else b"")

    def _text(self, registry: CollectorRegistry) -> bytes:
        made_at, text = self._texts.get(registry, (float("-inf"), b""))
        if time.monotonic() - made_at >= _KEPT_S:
            text = generate_latest(registry)
            self._texts[registry] = time.monotonic(), text
        return text

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(name, meaning, registry=self._registry)

    def _by_result(self, name: str, meaning: str, *results: str) -> Counter:
        """Return a counter that starts with a zero per result: increase() misses a series that starts with
        1.
        """
        counter = Counter(name, meaning, ["result"], registry=self._registry)
        for result in results:
            counter.labels(result)
        return counter


class _StateCollector(Collector):
    """Queries the current state when the metrics are read."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Describe nothing in advance: registering must not query anything."""
        return iter(())


class _CurrentState(_StateCollector):
    """The number of groups, workers and GPUs by state."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the number of groups and workers by state."""
        groups_now = self._queries.groups()
        phases = Tally(group.phase for group in groups_now)
        groups = GaugeMetricFamily("procguard_groups", "Groups by phase.", labels=["phase"])
        for phase in GroupPhase:
            groups.add_metric([phase.value], phases[phase])
        yield groups
        nodes = self._queries.glances()
        workers = [worker for node in nodes for worker in node.workers]
        states = Tally(worker.report.state if worker.report else WorkerState.IDLE for worker in workers)
        by_state = GaugeMetricFamily("procguard_workers", "Workers by state.", labels=["state"])
        for state in WorkerState:
            by_state.add_metric([state.value], states[state])
        yield by_state
        gpus = [gpu for node in nodes for gpu in node.gpus]
        yield GaugeMetricFamily("procguard_gpus", "GPUs that agents report.", len(gpus))
        mean = known_mean(gpu.utilization_percent for gpu in gpus)
        yield GaugeMetricFamily("procguard_gpu_utilization_percent", "Mean use of all GPUs.", mean)
        restarts = sum(group.restarts_used for group in groups_now)
        yield GaugeMetricFamily(
            "procguard_restarts_used", "Automatic restarts of the groups' newest runs.", restarts
        )
        silent = sum(worker.silent for worker in workers)
        yield GaugeMetricFamily("procguard_workers_silent", "Workers whose heartbeat is overdue.", silent)


class _ByName(_StateCollector):
    """The state of each group, node and GPU."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the series of groups, then those of nodes and GPUs."""
        nodes = self._queries.glances()
        of_groups: dict[str, list[WorkerGlance]] = {}
        for worker in (worker for node in nodes for worker in node.workers):
            of_groups.setdefault(worker.group or "", []).append(worker)
        yield from self._of_groups(of_groups)
        yield from self._of_nodes(nodes)

    def _of_groups(self, workers: Mapping[str, Sequence[WorkerGlance]]) -> Iterator[GaugeMetricFamily]:
        phase = _gauge("procguard_group_phase", "1 for the phase of a group.", "group", "phase")
        count = _gauge("procguard_group_workers", "Workers of a group.", "group")
        silent = _gauge(
            "procguard_group_workers_silent", "Workers of a group whose heartbeat is overdue.", "group"
        )
        restarts = _gauge(
            "procguard_group_restarts_used", "Automatic restarts of a group's newest run.", "group"
        )
        use = _gauge("procguard_group_gpu_utilization_percent", "Mean use of a group's GPUs.", "group")
        for group in self._queries.groups():
            own = workers.get(group.name, ())
            gpus = [gpu for worker in own if worker.report for gpu in worker.report.gpus]
            phase.add_metric([group.name, group.phase.value], 1)
            count.add_metric([group.name], len(own))
            silent.add_metric([group.name], sum(worker.silent for worker in own))
            restarts.add_metric([group.name], group.restarts_used)
            if (mean := known_mean(gpu.utilization_percent for gpu in gpus)) is not None:
                use.add_metric([group.name], mean)
        yield from (phase, count, silent, restarts, use)

    @staticmethod
    def _of_nodes(nodes: Sequence[NodeGlance]) -> Iterator[GaugeMetricFamily]:
        up = _gauge("procguard_node_up", "1 if a node's agent sends heartbeats.", "node")
        cpu = _gauge("procguard_node_cpu_percent", "Use of a node's processors.", "node")
        labels = ("group", "node", "gpu")
        use = _gauge("procguard_node_gpu_utilization_percent", "Use of a GPU.", *labels)
        memory = _gauge("procguard_node_gpu_memory_used_gib", "Used memory of a GPU.", *labels)
        for node in nodes:
            up.add_metric([node.node], not node.silent)
            if node.silent:  # the use of its GPUs is unknown
                continue
            if node.entry.machine:
                cpu.add_metric([node.node], node.entry.machine.cpu_percent)
            found = {gpu.index: (one, gpu) for one in node.workers if one.report for gpu in one.report.gpus}
            for index, (worker, gpu) in sorted(found.items()):
                place = [worker.group or "", node.node, str(index)]
                if gpu.utilization_percent is not None:
                    use.add_metric(place, gpu.utilization_percent)
                if gpu.memory_used_gib is not None:
                    memory.add_metric(place, gpu.memory_used_gib)
        yield from (up, cpu, use, memory)


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=labels)
