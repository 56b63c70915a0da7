"""A run as Prometheus metrics, served over HTTP. Imported only for ``--metrics-port``."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from socketserver import TCPServer, ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from platform_launch.health.finding import Grade
from platform_launch.launch.run_report import RunReport
from platform_launch.text import one_line

# Limits for clients that do not read the answer, and for their number.
_CLIENT_LIMIT_S = 10.0
_MOST_CLIENTS = 8


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_LIMIT_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Log nothing: this process's output is the job's."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = BoundedSemaphore(_MOST_CLIENTS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without a DNS lookup, which may hang."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Reject a client if there are too many others."""
        return self._free.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer one client in a thread; release its slot if no thread can be started."""
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self._free.release()
            raise  # the connection is closed

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one client."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect early."""


class MetricsServer:
    """Serves the current ``report()`` to Prometheus. Raises OSError if it cannot listen."""

    def __init__(self, address: tuple[str, int], report: Callable[[], RunReport]) -> None:
        registry = CollectorRegistry()
        registry.register(_RunCollector(report))
        self._server = _Server(address)
        self._server.set_app(make_wsgi_app(registry))
        self.port = self._server.server_port

    def start(self) -> None:
        """Start serving in a thread."""
        Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class _RunCollector(Collector):
    def __init__(self, report: Callable[[], RunReport]) -> None:
        self._report = report

    def describe(self) -> list[Metric]:
        """Describe no metrics in advance: no other collector can collide."""
        return []

    def collect(self) -> Iterator[Metric]:
        return families(self._report())


def families(report: RunReport) -> Iterator[Metric]:
    """Yield a run's metrics, without unknown ones."""
    cost = report.cost
    named = {
        "step": ("The last step in the output.", cost.step),
        "target_step": ("The last step that the output announces.", cost.target_step),
        "first_step_seconds": ("From the start of the launch to the first step.", cost.first_step_s),
        "productive_ratio": ("Share of the total time spent on steps that were kept.", cost.productive_share),
        "steps_per_second": ("Speed of this start.", cost.steps_per_s),
        "speed_change_ratio": (
            "Speed of the last quarter relative to the first, minus 1.",
            cost.speed_change,
        ),
        "eta_seconds": ("Until the last step that the output announces.", cost.eta_s),
    }
    for name, (text, value) in named.items():
        if value is not None:
            yield GaugeMetricFamily(f"platform_launch_{name}", text, value)
    counted = {
        "steps": ("Steps done, including those lost by restarts.", cost.steps or 0),
        "steps_lost": ("Steps repeated after restarts.", cost.lost_steps),
        "restarts": ("Restarts of the job's processes.", report.restarts),
        "slow_rank_seconds": ("Time the other ranks waited for slow ones.", cost.slow_s),
    }
    for name, (text, count) in counted.items():
        yield CounterMetricFamily(f"platform_launch_{name}", text, count)
    spent = GaugeMetricFamily("platform_launch_time_seconds", "Time of the run by phase.", labels=["phase"])
    for name, value in (
        ("waiting", cost.waiting_s),
        ("starting", cost.starting_s),
        ("training", cost.training_s),
        ("hang", cost.hang_s),
        ("restart", cost.restart_s),
    ):
        spent.add_metric([name], value)
    yield spent
    yield from _of_devices(report)


def _of_devices(report: RunReport) -> Iterator[Metric]:
    labels = ["node_rank", "host"]
    worth = GaugeMetricFamily(
        "platform_launch_node_health", "1 for the grade of a node's devices.", labels=[*labels, "grade"]
    )
    findings = GaugeMetricFamily(
        "platform_launch_device_finding",
        "1 for each finding about a device.",
        labels=[*labels, "id", "where"],
    )
    busy = GaugeMetricFamily(
        "platform_launch_gpu_utilization_percent", "Utilization of a GPU.", labels=[*labels, "gpu"]
    )
    memory = GaugeMetricFamily(
        "platform_launch_gpu_memory_used_bytes", "Memory in use on a GPU.", labels=[*labels, "gpu"]
    )
    for node in report.nodes:
        of_node = [str(node.node_rank), one_line(node.host)]
        for gpu in node.gpus:
            if gpu.utilization_percent is not None:
                busy.add_metric([*of_node, str(gpu.index)], gpu.utilization_percent)
            if gpu.memory_used_gib is not None:
                memory.add_metric([*of_node, str(gpu.index)], gpu.memory_used_gib * 2**30)
        for grade in Grade:
            worth.add_metric([*of_node, grade.value], float(grade is node.health.grade))
        for finding in dict.fromkeys((one.id, one_line(one.where)) for one in node.findings):
            findings.add_metric([*of_node, *finding], 1.0)
    yield worth
    yield findings
    yield busy
    yield memory
