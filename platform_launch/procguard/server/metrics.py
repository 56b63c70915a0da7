"""Prometheus metrics in a registry of their own. Only counts: names are for those who log in."""

from __future__ import annotations

import threading
import time
from collections import Counter as Tally
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from platform_launch.procguard.api.shapes.groups import GroupPhase
from platform_launch.procguard.api.wire import WorkerState
from platform_launch.procguard.core.queries import Queries
from platform_launch.procguard.core.views import known_mean

_KEPT_S = 1.0


class Metrics:
    """Counts what happens, and asks what is when it is read."""

    def __init__(self, queries: Queries) -> None:
        self._registry = CollectorRegistry()
        self.heartbeats = self._counter("procguard_heartbeats", "Heartbeats of agents that were answered.")
        self.refused = self._counter(
            "procguard_heartbeats_refused", "Heartbeats of agents that were refused."
        )
        self.log_bytes = self._counter("procguard_log_bytes", "Bytes of log that agents sent.")
        self.log_refused = self._counter("procguard_log_refused", "Chunks of log the disk had no room for.")
        self.logins = self._by_result(
            "procguard_logins", "Logins that were tried, by result.", "succeeded", "failed", "throttled"
        )
        self.joins = self._by_result(
            "procguard_joins",
            "Joins of agents that were tried, by result.",
            *("succeeded", "failed", "refused", "throttled"),
        )
        self.failed = self._counter("procguard_groups_failed", "Groups that came to failed.")
        self.notices = self._by_result("procguard_notices", "Notices, by result.", "sent", "lost")
        self._registry.register(_CurrentState(queries))
        self._lock = threading.Lock()
        self._text, self._made_at = b"", float("-inf")

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format, at most a second old: anybody may ask for them."""
        with self._lock:
            if time.monotonic() - self._made_at >= _KEPT_S:
                self._text, self._made_at = generate_latest(self._registry), time.monotonic()
            return self._text

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(name, meaning, registry=self._registry)

    def _by_result(self, name: str, meaning: str, *results: str) -> Counter:
        """Return a counter that begins with a zero for each result: increase() misses what begins with 1."""
        counter = Counter(name, meaning, ["result"], registry=self._registry)
        for result in results:
            counter.labels(result)
        return counter


class _CurrentState(Collector):
    """What is now, of groups, workers and GPUs: asked when the metrics are read."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Say nothing beforehand: registering must ask nothing."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield how many groups and workers are in which state."""
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
