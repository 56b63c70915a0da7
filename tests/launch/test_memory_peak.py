"""The most memory that a node's training held is seen while it is held, and told afterwards."""

from __future__ import annotations

import subprocess
import sys

from platform_launch.events import line
from platform_launch.launch.conclusion import closing_line, peak_event
from platform_launch.launch.cost import StartCost, run_cost
from platform_launch.launch.process_watch import MemoryPeak
from platform_launch.observe.memory import MemoryHeld, memory_lines
from tests.lab.waiting import until

HOLDS = "import sys; held = bytearray(300 * 1024 * 1024); print('held', flush=True); sys.stdin.read()"


def test_memory_of_a_process_that_is_gone_stays_known() -> None:
    peak = MemoryPeak((), interval_s=0.02)
    peak.start()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holding:
        assert holding.stdout is not None
        assert holding.stdout.readline() == b"held\n"
        until(lambda: peak.processes_gib > 300 / 1024, lambda: f"saw {peak.processes_gib} GiB")
        holding.communicate(b"")
    peak.stop()
    assert peak.processes_gib > 300 / 1024
    assert line(peak_event(peak.held)) == f"peak memory: {peak.held.describe()}"
    assert peak.held.gpus_gib == {}


def test_gpus_that_held_the_same_are_named_together() -> None:
    held = MemoryHeld(100.04, {1: 53.02, 0: 53.01, 2: 8.0})
    assert held.describe() == "processes 100.0 GiB; GPU 0, 1 each 53.0 GiB; GPU 2 8.0 GiB"


def test_busy_gpus_are_one_figure_and_an_idle_one_is_named() -> None:
    busy = MemoryHeld(1.0, gpus_busy={0: 96.0, 1: 94.0}, gpus_busy_now={0: 97.0, 1: 3.0})
    assert busy.describe() == "processes 1.0 GiB; GPUs 95% busy on average"
    assert memory_lines([("node 0", busy)])[1] == "node 0: GPUs 50% busy now, GPU 1 only 3%"
    assert memory_lines([("node 0", MemoryHeld(1.0))]) == ["peak memory of node 0: processes 1.0 GiB"]


def test_the_closing_line_has_the_use_of_the_gpus() -> None:
    cost = run_cost([StartCost(0.0, 60.0)])
    held = MemoryHeld(1.0, {0: 53.0, 1: 53.0}, gpus_busy={0: 96.0, 1: 94.0})
    assert line(closing_line(cost, held)) == (
        "summary: 1 min 0 s training; GPU 0, 1 each 53.0 GiB; GPUs 95% busy on average"
    )
    assert line(closing_line(cost, MemoryHeld(1.0))) == "summary: 1 min 0 s training"


def test_nothing_is_told_where_nothing_was_seen() -> None:
    assert not MemoryPeak(()).held


def test_inspect_shows_each_of_a_few_nodes_and_of_many_the_one_that_held_the_most() -> None:
    held = [(f"node {rank}", MemoryHeld(2.0, {0: 40.0 + rank})) for rank in range(9)]
    assert memory_lines([*held[:2], ("node 9", MemoryHeld())]) == [
        "peak memory of node 0: processes 2.0 GiB; GPU 0 40.0 GiB",
        "peak memory of node 1: processes 2.0 GiB; GPU 0 41.0 GiB",
    ]
    assert memory_lines(held) == [
        "peak memory of node 8, the most of 9 nodes: processes 2.0 GiB; GPU 0 48.0 GiB"
    ]
