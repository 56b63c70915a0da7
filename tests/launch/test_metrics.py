"""A run as Prometheus sees it: a real launch and real requests."""

from __future__ import annotations

import socket
import socketserver
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest
from click.testing import CliRunner
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from platform_launch.cli import run
from platform_launch.errors import UsageError
from platform_launch.launch.metrics import MetricsServer
from platform_launch.launch.run_report import RunReporter
from tests.conftest import FakeNvml
from tests.lab.nvml import fake
from tests.lab.waiting import LIMIT_S, until
from tests.launch.running import launch

Values = dict[tuple[str, ...], float]


def scrape(port: int) -> Values:
    """Return every sample by its name and the values of its labels, in the labels' order."""
    with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:
        text = answer.read().decode()
    families: list[Metric] = list(text_string_to_metric_families(text))
    found: Values = {}
    for sample in (sample for family in families for sample in family.samples):
        key = (sample.name.removeprefix("platform_launch_"), *(v for _, v in sorted(sample.labels.items())))
        found[key] = sample.value
    return found


def test_prometheus_reads_steps_time_and_health_of_a_run(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    variables = fake_nvml(*fake.h100s(2), fake.use(1, 93))
    options = ("--metrics-port", "0", "--health-interval", "0.1", "--no-doctor")
    with launch(tmp_path, *options, variables=variables) as running:
        port = running.event("metrics-served").fields["port"]
        assert isinstance(port, int)
        found = until(lambda: scrape(port) if scrape(port).get(("step",)) == 7.0 else {}, pause_s=0.2)
        assert (found["target_step",], found["steps_total",], found["restarts_total",]) == (10.0, 7.0, 0.0)
        assert found["first_step_seconds",] > 0
        phases = {name[1] for name in found if name[0] == "time_seconds"}
        assert phases == {"waiting", "starting", "training", "hang", "restart"}
        health = {name[1]: value for name, value in found.items() if name[0] == "node_health"}
        assert health == {"healthy": 1.0, "suspect": 0.0, "bad": 0.0}
        busy = {name[1]: value for name, value in found.items() if name[0] == "gpu_utilization_percent"}
        memory = {name[1]: value for name, value in found.items() if name[0] == "gpu_memory_used_bytes"}
        assert busy["1"] == 93.0
        assert memory == {"0": 600 * 2**20, "1": 600 * 2**20}
        fake.say(Path(variables["FAKE_NVML"]), (*fake.h100s(2), fake.use(1, 93), fake.xid(1, 79)))
        running.event("gpu-xid")
        found = scrape(port)
        health = {name[1]: value for name, value in found.items() if name[0] == "node_health"}
        assert health == {"healthy": 0.0, "suspect": 0.0, "bad": 1.0}
        assert [(name[2], name[4]) for name in found if name[0] == "device_finding"] == [("gpu-xid", "GPU 1")]
        assert running.end() == 0
    (log,) = (tmp_path / "logs").glob("*.log")
    assert "93% busy" in log.read_text()


def test_a_machine_without_gpus_has_no_gpu_metrics(tmp_path: Path) -> None:
    with launch(tmp_path, "--metrics-port", "0", "--no-doctor") as running:
        port = running.event("metrics-served").fields["port"]
        assert isinstance(port, int)
        assert not [name for name in scrape(port) if name[0].startswith("gpu_")]
        assert running.end() == 0


def test_a_port_that_is_taken_costs_the_metrics_and_not_the_run(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with launch(tmp_path, "--metrics-port", port) as running:
            assert running.event("metrics-not-served").level == "WARN"
            assert running.end() == 0


def test_an_ipv6_address_stands_as_in_a_url(tmp_path: Path) -> None:
    with launch(tmp_path, "--metrics-port", "[::1]:0") as running:
        assert running.end() == 0
    (log,) = (tmp_path / "logs").glob("*.log")
    assert " http://[::1]:" in log.read_text() or " no metrics at [::1]:" in log.read_text()


def test_a_missing_library_is_named_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "prometheus_client.py").write_text(
        "raise ModuleNotFoundError('none', name='prometheus_client')\n"
    )
    with launch(tmp_path, "--metrics-port", "0") as running:
        assert running.process.wait() == 67
        assert "[metrics]" in str(running.event("refused-installation").fields["hint"])


@pytest.mark.parametrize("address", ["x", "1.2.3.4", "1.2.3.4:", "host:1", "65536", ":-1", "[::1]:٣"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    done = CliRunner().invoke(run.command, ["--metrics-port", address])
    assert isinstance(done.exception, UsageError)
    assert "expected" in done.exception.message


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("9400", ("127.0.0.1", 9400)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("[::]:9400", ("::", 9400)),
    ],
)
def test_the_loopback_unless_an_address_is_given(written: str, address: tuple[str, int]) -> None:
    flags = run.command.make_context("run", ["--metrics-port", written]).params
    assert flags["metrics"] == address


def test_clients_that_never_ask_cannot_hold_more_than_a_few_threads() -> None:
    server = MetricsServer(("127.0.0.1", 0), lambda: RunReporter().report(of_all_nodes=False))
    server.start()
    try:
        with ExitStack() as stack:
            idle = [
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(9)
            ]
            assert idle[8].recv(1) == b""  # hung up on
        until(lambda: _answers(server.port))
    finally:
        server.stop()


def test_a_client_for_whom_no_thread_can_be_started_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MetricsServer(("127.0.0.1", 0), lambda: RunReporter().report(of_all_nodes=False))
    server.start()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(socketserver.threading, "Thread", _NoThread)  # type: ignore[attr-defined]
            for _ in range(9):
                with socket.create_connection(("127.0.0.1", server.port)) as client:
                    assert client.recv(1) == b""
        assert ("steps_total",) in scrape(server.port)
    finally:
        server.stop()


class _NoThread(threading.Thread):
    def start(self) -> None:
        raise RuntimeError("can't start new thread")


def _answers(port: int) -> bool:
    try:
        return ("steps_total",) in scrape(port)
    except OSError:
        return False


def test_a_launch_that_serves_nothing_does_not_load_what_would() -> None:
    code = (
        "import sys, platform_launch.cli.run, platform_launch.launch.job;"
        "print(*{'http.server', 'wsgiref', 'prometheus_client'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
