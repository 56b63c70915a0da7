from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from platform_launch.procguard.agent.output import StepMeter
from platform_launch.procguard.api.shapes.history import ChartKind
from platform_launch.procguard.api.wire import (
    GpuReport,
    Heartbeat,
    MachineReport,
    WorkerReport,
    WorkerState,
)
from platform_launch.procguard.control.history import History
from platform_launch.procguard.database import serving
from tests.procguard.cluster import Cluster

GROUP, NODE, WORKER = ChartKind.GROUP, ChartKind.NODE, ChartKind.WORKER


def busy(cluster: Cluster, node: str, percent: float, steps: float | None = None) -> None:
    gpu = GpuReport(index=0, utilization_percent=percent, memory_used_gib=percent / 2)
    report = WorkerReport(number=0, state=WorkerState.RUNNING, generation=1, gpus=(gpu,), steps_per_s=steps)
    machine = MachineReport(cpu_percent=10, memory_used_gib=4, memory_total_gib=8)
    beat = Heartbeat(node=node, instance=f"instance-{node}", machine=machine, workers=(report,))
    cluster.control.heartbeat(node, beat)


def test_the_last_hour_of_a_worker_a_node_and_a_group(database_url: str) -> None:
    clock = iter(range(1_000_000, 2_000_000, 20))
    with serving(database_url) as database:
        cluster = Cluster(database.store)
        cluster.running("gn6", "gn7")
        cluster.control.tick()
        history = History(cluster.control.queries, database.measurements, lambda: float(next(clock)))
        assert history.chart(WORKER, "gn6-0").times == []
        for percent in (80.0, 90.0):
            busy(cluster, "gn6", percent, steps=2.0)
            busy(cluster, "gn7", 20.0)
            history.sample()
        assert history.chart(WORKER, "gn6-0").series == {
            "gpu": [80, 90],
            "gpu_memory": [40, 45],
            "steps": [2, 2],
        }
        assert history.chart(NODE, "gn6").series["cpu"] == [10, 10]
        group = history.chart(GROUP, "g").series
        assert (group["gpu"], group["gpu_lowest"], group["steps"]) == ([50, 55], [20, 20], [2, 2])
        assert history.ranks("g", "gpu").series == {"0 · gn6-0": [80, 90], "1 · gn7-0": [20, 20]}
        cluster.clock_s += 100  # nobody is heard any more: a gap, not the last value for ever
        history.sample()
        assert history.chart(WORKER, "gn6-0").series["gpu"] == [80, 90, None]
        for _ in range(400):
            history.sample()
        assert len(history.chart(WORKER, "gn6-0").times) == 180, "an hour, and no more"


def test_days_are_in_the_database(database_url: str) -> None:
    with serving(database_url) as database:
        cluster = Cluster(database.store)
        cluster.running("gn6")
        now = datetime.now(timezone.utc).timestamp()
        history = History(cluster.control.queries, database.measurements, lambda: now)
        for turn in range(60):
            now += 20
            busy(cluster, "gn6", 40.0 if turn < 30 else 60.0)
            history.sample()
        chart = history.chart(GROUP, "g", days=True)
        assert chart.series["gpu"] == [40, 60]
        assert chart.times[1] - chart.times[0] == pytest.approx(600)
    with serving(database_url) as database:
        again = History(Cluster(database.store).control.queries, database.measurements)
        assert again.chart(GROUP, "g", days=True) == chart
        database.measurements.delete_older(GROUP, 0)


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("Step {}/500 | Loss: 0.5", 1),
        ("step={} loss=0.5", 1),
        ("{{'loss': 0.5, 'global_step: {}'}}", 1),
        ("epoch 3 steps {}", None),
        ("{{'loss': 0.5, 'step': {}}}", 1),
        ("time step size {}", None),
        ("footstep {}", None),
    ],
)
def test_steps_are_read_from_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, step: int | None
) -> None:
    now = 100.0
    monkeypatch.setattr("platform_launch.procguard.agent.output.time.monotonic", lambda: now)
    log = tmp_path / "output.log"
    meter = StepMeter()
    rates = []
    for number in (10, 30, 50):
        log.write_text(
            log.read_text() + line.format(number) + "\n" if log.exists() else line.format(number) + "\n"
        )
        rates.append(meter.read(log))
        now += 10
    assert rates == ([None, 2.0, 2.0] if step else [None, None, None])
    assert meter.read(None) is None


def test_a_line_that_is_being_written_is_read_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("platform_launch.procguard.agent.output.time.monotonic", lambda: now)
    log = tmp_path / "output.log"
    meter = StepMeter()
    rates = []
    for text in ("step 100\nstep 1", "10\nstep 1", "20\n"):
        with log.open("a") as file:
            file.write(text)
        rates.append(meter.read(log))
        now += 10
    assert rates == [None, 1.0, 1.0]
