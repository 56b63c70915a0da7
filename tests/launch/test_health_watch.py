"""The devices of nodes whose training runs: what is said, told to the others, and found out at a failure."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer

import pytest

from platform_launch.events import Event, line
from platform_launch.hardware import rdma
from platform_launch.health.comparison import GpuSample, NodeSample, PortSample
from platform_launch.health.finding import Grade
from platform_launch.launch.cost import RunClock
from platform_launch.launch.health_watch import HealthWatch
from platform_launch.launch.run_report import RunReport, RunReporter, devices
from platform_launch.launch.training_command import HealthOptions
from platform_launch.rendezvous.run.texts import (
    ReadShared,
    RequestReceived,
    SharedText,
    SharedTexts,
    TextCommand,
)
from tests.conftest import FakeNvml
from tests.hardware import trees
from tests.lab.nvml import fake
from tests.lab.waiting import until

OFTEN_S = 0.02


class Nodes:
    """Watches over nodes with one port each, and a rendezvous between them that is a dictionary."""

    def __init__(self, folder: Path) -> None:
        self.said: list[Event] = []
        self._folder = folder
        self._texts: dict[int, str] = {}
        self._watches: dict[int, HealthWatch] = {}

    def start(self, rank: int, interval_s: float = OFTEN_S) -> HealthWatch:
        ib = trees.ib("mlx5_0", "400 Gb/sec (4X NDR)", rank)
        roots = trees.machine(self._folder / str(rank), (ib,))
        options = HealthOptions(interval_s, rank, f"gn{rank}", ports=rdma.find(roots.sys), sys_root=roots.sys)
        watch = HealthWatch(options, self.said.append, lambda message: self._carry(rank, message))
        self._watches[rank] = watch
        watch.start()
        return watch

    def port_is(self, rank: int, state: str) -> None:
        folder = self._folder / str(rank) / "sys/class/infiniband/mlx5_0/ports/1"
        trees.write(folder / "state", f"{state}\n")

    def ids(self) -> list[str]:
        return [said.id for said in self.said]

    def shared(self, rank: int) -> str:
        return self._texts.get(rank, "")

    def stop(self) -> None:
        for watch in self._watches.values():
            watch.stop()

    def _carry(self, rank: int, message: TextCommand) -> None:
        if isinstance(message, SharedText):
            self._texts[rank] = message.text
        elif isinstance(message, ReadShared):
            # As the link does: in another thread, a moment later, and not within the question.
            Timer(0, self._watches[rank].receive, [SharedTexts(dict(self._texts))]).start()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(tmp_path)
    yield found
    found.stop()


def _grade(watch: HealthWatch) -> Grade | None:
    health = watch.check()
    return None if health is None else health.grade


def test_a_port_that_is_lost_is_said_once_and_makes_the_node_bad(nodes: Nodes) -> None:
    watch = nodes.start(0)
    until(lambda: nodes.shared(0))
    assert _grade(watch) is Grade.HEALTHY
    nodes.port_is(0, "1: DOWN")
    until(lambda: "rdma-port-lost" in nodes.ids())
    health = watch.check()
    assert health is not None
    assert health.grade is Grade.BAD
    assert "mlx5_0:1: was active, and is down" in health.reasons[0]
    assert nodes.ids() == ["rdma-port-lost"]
    assert nodes.said[0].level == "ERROR"
    assert "mlx5_0:1" in line(nodes.said[0])


def test_inspect_shows_the_devices_of_every_node(nodes: Nodes) -> None:
    watches = [nodes.start(rank) for rank in range(3)]
    until(lambda: all(nodes.shared(rank) for rank in range(3)))
    reporter = RunReporter()
    assert reporter.overview()["health_lines"] == []
    reporter.begin(watches[1].options, nodes.said.append)
    reporter.health = watches[1]
    assert reporter.overview()["health_lines"] == ["devices: nothing is wrong on 3 nodes"]
    nodes.port_is(2, "1: DOWN")
    until(lambda: "rdma-port-lost" in nodes.shared(2))
    shown = reporter.overview()
    assert "node 2 (gn2) is bad: mlx5_0:1" in str(shown["health_lines"])
    assert isinstance(shown["health"], list)
    assert [node["grade"] for node in shown["health"]] == ["healthy", "healthy", "bad"]
    assert [finding["id"] for finding in shown["health"][2]["findings"]] == ["rdma-port-lost"]
    own = reporter.report(of_all_nodes=False)
    assert [node.node_rank for node in own.nodes] == [1]


def test_inspect_shows_who_differs_from_the_others() -> None:
    def node(rank: int, clock_mhz: float, **errors: float) -> NodeSample:
        gpus = [GpuSample(index, "NVIDIA H100", clock_mhz if index == 1 else 1900.0) for index in range(2)]
        return NodeSample(rank, f"gn{rank}", tuple(gpus), (PortSample("mlx5_0:1", errors),))

    found = devices([node(0, 1900.0), node(1, 900.0), node(2, 1900.0, symbol_error=600.0), node(3, 1900.0)])
    cost = RunClock().so_far()
    lines = RunReport(0, "gn0", 0, cost, found).as_dict()["health_lines"]
    assert isinstance(lines, list)
    slow, faulty = lines
    assert slow == "node 1 (gn1) is suspect: GPU 1: runs at 900 MHz, the others at 1900 MHz [gpu-slow]"
    assert faulty.startswith("node 2 (gn2) is suspect: mlx5_0:1: symbol_error grows by 600 per minute")


def test_what_another_node_shares_is_checked(nodes: Nodes) -> None:
    watch = nodes.start(0)
    until(lambda: nodes.shared(0))
    junk = {1: "no sample", 2: '["HealthSample",{"sample":{"node_rank":"two"}}]', 0: nodes.shared(0)}
    assert watch.receive(SharedTexts(junk))
    assert not watch.receive(RequestReceived("0-1", "?"))


def test_nothing_is_watched_at_interval_0_and_a_failure_is_looked_at_all_the_same(nodes: Nodes) -> None:
    watch = nodes.start(0, interval_s=0)
    assert _grade(watch) is Grade.HEALTHY
    assert nodes.shared(0)
    nodes.port_is(0, "1: DOWN")
    assert _grade(watch) is Grade.BAD


def test_a_reading_that_fails_in_a_way_nobody_expected_is_not_laid_to_a_silent_driver(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> tuple[()]:
        raise ValueError("rate: '?'")

    watch = nodes.start(0, interval_s=0)
    monkeypatch.setattr(rdma, "read_health", read)
    health = watch.check()
    assert health is not None
    assert "ValueError: rate: '?'" in health.reasons[0]


def test_a_node_without_devices_is_healthy_and_asks_nothing() -> None:
    def tell(said: Event) -> None:
        raise AssertionError(said)

    watch = HealthWatch(HealthOptions(OFTEN_S, 0, "gn0"), tell)
    watch.start()
    assert watch.check() is None


# Says what is said as JSON lines; a line of input asks for the verdict.
_SCRIPT = """
import json, sys
from pathlib import Path
from platform_launch.hardware import nvml
from platform_launch.launch.health_watch import HealthWatch
from platform_launch.launch.training_command import HealthOptions

gpus = nvml.read(sys_root=Path("/nonexistent"), proc_root=Path("/nonexistent")).devices
def tell(said):
    print(json.dumps([said.id, said.level, said.where or said.fields.get("problem", "")]), flush=True)
watch = HealthWatch(HealthOptions(0.02, 0, "gn0", gpus), tell, lambda message: None)
watch.start()
for _ in sys.stdin:
    health = watch.check()
    print(json.dumps(["verdict", health.grade.value, list(health.reasons)]), flush=True)
watch.stop()
"""
Say = Callable[..., list[object]]


@pytest.fixture
def launcher(fake_nvml: FakeNvml) -> Iterator[Say]:
    """A process that watches two GPUs: tell it what the driver says from now on, and read its next line."""
    variables = fake_nvml(*fake.h100s(2))
    command, pipe = [sys.executable, "-c", _SCRIPT], subprocess.PIPE
    with subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def say(*lines: str, ask: bool = False) -> list[object]:
            assert process.stdin is not None
            assert process.stdout is not None
            fake.say(Path(variables["FAKE_NVML"]), (*fake.h100s(2), *lines))
            if ask:
                process.stdin.write("\n")
                process.stdin.flush()
            said: list[object] = json.loads(process.stdout.readline())
            return said

        yield say
        process.stdin.close()
        assert process.wait() == 0


def test_an_xid_in_mid_run_is_said_at_once_and_remembered(launcher: Say) -> None:
    assert launcher(ask=True) == ["verdict", "healthy", []]
    assert launcher(fake.xid(1, 79)) == ["gpu-xid", "ERROR", "GPU 1"]
    verdict = launcher(fake.xid(1, 79), ask=True)
    assert verdict[:2] == ["verdict", "bad"]
    assert "XID 79" in str(verdict[2])


def test_a_gpu_asks_for_a_reset_waits_for_one_and_vanishes(launcher: Say) -> None:
    assert launcher(ask=True) == ["verdict", "healthy", []]
    pending = fake.state(0, pending=1)
    assert launcher(*pending) == ["gpu-rows-pending", "WARN", "GPU 0"]
    reboot = fake.field(1, fake.RECOVERY_ACTION, 2)
    assert launcher(*pending, reboot) == ["gpu-recovery-action", "ERROR", "GPU 1"]
    assert launcher(*pending, fake.lost(1)) == ["gpu-lost", "ERROR", "GPU 1"]
    verdict = launcher(*pending, fake.lost(1), ask=True)
    assert verdict[:2] == ["verdict", "bad"]


def test_a_driver_that_breaks_does_not_end_the_watching_launcher(fake_nvml: FakeNvml) -> None:
    variables = fake_nvml(*fake.h100s(1), fake.fail("nvmlEventSetCreate", 4))
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=variables, input="\n", capture_output=True, text=True, check=True
    )
    assert [json.loads(text)[:2] for text in done.stdout.splitlines()] == [
        ["xids-not-heard", "INFO"],
        ["verdict", "healthy"],
    ]
