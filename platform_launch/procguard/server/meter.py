"""Prometheus metrics in a registry of their own. Only counts: names are for those who log in."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from platform_launch.procguard.control import Control
from platform_launch.procguard.shapes import Phase
from platform_launch.procguard.wire import State


class Meter:
    """Counts what happens, and asks the control what is when it is read."""

    def __init__(self, control: Control) -> None:
        self._registry = CollectorRegistry()
        self.heartbeats = self._counter("procguard_heartbeats", "Heartbeats of agents that were answered.")
        self.refused = self._counter(
            "procguard_heartbeats_refused", "Heartbeats of agents that were refused."
        )
        self.log_bytes = self._counter("procguard_log_bytes", "Bytes of log that agents sent.")
        self.log_refused = self._counter("procguard_log_refused", "Chunks of log the disk had no room for.")
        self.logins = Counter(
            "procguard_logins", "Logins that were tried, by result.", ["result"], registry=self._registry
        )
        self._registry.register(_Now(control))

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(name, meaning, registry=self._registry)


class _Now(Collector):
    def __init__(self, control: Control) -> None:
        self._control = control

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Say nothing beforehand: registering must not ask the control."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield how many groups and workers are in which state."""
        phases = Tally(group.phase for group in self._control.groups())
        groups = GaugeMetricFamily("procguard_groups", "Groups by phase.", labels=["phase"])
        for phase in Phase:
            groups.add_metric([phase.value], phases[phase])
        yield groups
        workers = self._control.workers()
        states = Tally(worker.state for worker in workers)
        by_state = GaugeMetricFamily("procguard_workers", "Workers by state.", labels=["state"])
        for state in State:
            by_state.add_metric([state.value], states[state])
        yield by_state
        silent = sum(worker.silent for worker in workers)
        yield GaugeMetricFamily("procguard_workers_silent", "Workers whose heartbeat is overdue.", silent)
