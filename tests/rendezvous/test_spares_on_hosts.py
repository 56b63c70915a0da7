"""A job of three nodes and three spares, whose hosts are lost one way after another.

Its ranks follow the network: host 1 trains as node 2, and host 2 as node 1.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from platform_launch.errors import NodesAbsentError
from tests.lab.netns import Host, hosts, requires_netns
from tests.lab.waiting import until
from tests.rendezvous.cluster import Node, kill_everything, processes_on, start

pytestmark = requires_netns

ABSENT = NodesAbsentError.exit_code
NNODES, SPARES, RESTARTS = 3, 3, 3
# Each start brings it a step further: one that gets nowhere is not started a third time.
TRAINING = """
import os, time
print("training: step", os.environ["PLATFORM_LAUNCH_RESTART_COUNT"], flush=True)
time.sleep(1000)
"""


class SpareJob:
    """The job: ``nodes[i]`` is what runs on ``hosts[i]`` now; each start says ``training`` on three hosts."""

    def __init__(self, machines: tuple[Host, ...], logs: Path) -> None:
        self.hosts = machines
        self._script = logs / "training.py"
        self._script.write_text(TRAINING)
        self.nodes = [self._start(index, logs) for index in range(NNODES + SPARES)]
        self._earlier: list[Node] = []
        self._starts = 0
        self._logs = logs

    def trains_again(self) -> None:
        """Wait for the next attempt, in which every rank trains again."""
        self._starts += 1
        until(lambda: all(self._trained(rank) >= self._starts for rank in range(NNODES)), self.text)
        assert [self._trained(rank) for rank in range(NNODES)] == [self._starts] * NNODES, self.text()

    def is_spare(self, index: int, times: int = 1) -> None:
        until(lambda: self.nodes[index].count("[spare-waits]") >= times, self.text)

    def trained_on(self) -> list[int]:
        """Return how often each host's node has trained so far."""
        return [node.count("] training") for node in self.nodes]

    def starts_anew(self, index: int) -> None:
        """Start a node again on its host, as a platform does."""
        self._earlier.append(self.nodes[index])
        self.nodes[index] = self._start(index, self._logs / "anew")

    def ranks(self) -> dict[int, int]:
        """Return the rank of each host in the last attempt."""
        lines = {
            index: [line for _, line in node.lines if "] training" in line]
            for index, node in enumerate(self.nodes)
        }
        last = f"training: step {self._starts - 1}"
        return {
            index: rank
            for index, found in lines.items()
            for rank in range(NNODES)
            if any(f"[node {rank}] {last}" in line for line in found)
        }

    def signal(self, index: int, number: signal.Signals) -> None:
        for pid in processes_on(self.hosts[index]):
            os.kill(pid, number)

    def close(self) -> None:
        for host in self.hosts:
            kill_everything(host)
        for node in [*self._earlier, *self.nodes]:
            node.code()

    def text(self) -> str:
        return "\n\n".join(f"host {index}:\n{node.text}" for index, node in enumerate(self.nodes))

    def _start(self, index: int, logs: Path) -> Node:
        options = (
            *("--spares", str(SPARES), "--max-restarts", str(RESTARTS)),
            *("--node-timeout", "5", "--rank-order", "topology"),
        )
        network = {"PLATFORM_LAUNCH_NETWORK": f"rack{index % 2}"}
        host, total = self.hosts[index], NNODES + SPARES
        return start(host, index, total, logs=logs, options=options, script=self._script, env=network)

    def _trained(self, rank: int) -> int:
        return sum(node.count(f"[node {rank}] training") for node in [*self._earlier, *self.nodes])


@pytest.fixture
def job(tmp_path: Path) -> Iterator[SpareJob]:
    with hosts(NNODES + SPARES) as made:
        job = SpareJob(made, tmp_path)
        yield job
        job.close()


@pytest.mark.nightly
def test_job_survives_any_lost_node_but_node_0(job: SpareJob) -> None:
    job.trains_again()
    for spare in (3, 4, 5):
        job.is_spare(spare)
    assert job.ranks() == {0: 0, 1: 2, 2: 1}

    kill_everything(job.hosts[5])  # a spare: nobody misses it
    kill_everything(job.hosts[1])
    kill_everything(job.hosts[2])
    job.trains_again()
    assert job.trained_on() == [2, 1, 1, 1, 1, 0]

    job.starts_anew(1)  # its rank is another's by now
    job.is_spare(1)

    job.hosts[3].cut()
    job.trains_again()
    assert job.trained_on() == [3, 1, 1, 1, 2, 0]
    job.hosts[3].heal()
    job.is_spare(3, times=2)

    job.signal(4, signal.SIGSTOP)
    job.trains_again()
    job.signal(4, signal.SIGCONT)
    job.is_spare(4, times=2)
    assert job.trained_on() == [4, 2, 1, 2, 2, 0]

    kill_everything(job.hosts[0])  # after the last restart: nobody waits for it, the spare neither
    for index in (1, 3, 4):
        assert job.nodes[index].code() == ABSENT, job.text()
    assert job.nodes[3].said("[coordinator-silent]"), job.text()
