"""Jobs that lose the host of node 0, with and without a list of hosts: two nodes that train, and a spare."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from platform_launch.errors import NodesAbsentError
from tests.lab.netns import Host, hosts, requires_netns
from tests.lab.waiting import LIMIT_S, at_once, until
from tests.rendezvous.cluster import Node, kill_everything, processes_on, start

pytestmark = requires_netns

ABSENT = NodesAbsentError.exit_code
TRAINING = Path(__file__).with_name("lockstep.py")
NNODES, SPARES = 2, 1
SPARE = "node2"


class MovingJob:
    """The job: ``nodes[i]`` runs on ``hosts[i]``."""

    def __init__(
        self, machines: tuple[Host, ...], folder: Path, *, listed: bool, limit_s: str = "300"
    ) -> None:
        self.hosts = machines
        self._folder = folder
        options: tuple[str, ...] = ("--spares", str(SPARES), "--max-restarts", "3", "--node-timeout", "5")
        options = (*options, "--roll-call-timeout", limit_s)
        total = NNODES + SPARES
        self.nodes: list[Node] = []
        for rank, host in enumerate(machines):
            names = "\n".join(machine.name for machine in machines)
            said = {
                "SKYPILOT_NODE_IPS": names,
                "SKYPILOT_NODE_RANK": str(rank),
                "SKYPILOT_NUM_NODES": str(total),
            }
            self.nodes.append(
                start(
                    host,
                    rank,
                    total,
                    str(folder),
                    logs=folder,
                    options=options,
                    env={**said, "SKYPILOT_TASK_ID": "lab"} if listed else {},
                    script=TRAINING,
                )
            )

    def steps(self) -> list[tuple[int, str, str]]:
        """Return each step with the host of rank 0 and MASTER_ADDR.

        None is made twice, but for the one that was under way where a node 0 was stopped: for that step it
        has heard all that it needs, and the launcher wakes no sooner than the training.
        """
        path = self._folder / "steps"
        lines = path.read_text().splitlines() if path.exists() else []
        made = [(int(step), host, address) for step, host, address in map(str.split, lines)]
        moved = next((place for place, (_, host, _) in enumerate(made) if host == SPARE), len(made))
        woken = [step for step in made[moved:] if step[1] != SPARE]
        assert len(woken) <= 1, made
        made = [step for step in made if step not in woken]
        assert [step for step, _, _ in made] == list(range(1, len(made) + 1)), made
        return made

    def trains_at(self, host: str) -> int:
        """Wait for further steps with rank 0 on a host; return how many there are by then."""
        known = len(self.steps())
        until(lambda: len(self.steps()) >= known + 5, self.text)
        assert self.steps()[-1][1:] == (host, host), self.text()
        return len(self.steps())

    def moves(self) -> None:
        """Wait until rank 0 trains on the host of the spare."""
        until(lambda: [made for made in self.steps() if made[1] == SPARE], self.text)
        self.trains_at(SPARE)
        for node in self.nodes[1:]:
            assert node.said("the job has moved: node 0 is now on node2"), self.text()

    def finishes(self, *living: int) -> None:
        """Let the job end, and assert that every live node exits with 0."""
        (self._folder / "finish").touch()
        for index in living:
            assert self.nodes[index].code() == 0, self.text()

    def signal(self, index: int, number: signal.Signals) -> None:
        for pid in processes_on(self.hosts[index]):
            os.kill(pid, number)

    def close(self) -> None:
        for host in self.hosts:
            kill_everything(host)
        for node in self.nodes:
            node.code()

    def text(self) -> str:
        return "\n\n".join(f"host {index}:\n{node.text}" for index, node in enumerate(self.nodes))


@contextmanager
def job(folder: Path, *, listed: bool = True, limit_s: str = "300") -> Iterator[MovingJob]:
    folder.mkdir(exist_ok=True)
    with hosts(NNODES + SPARES) as machines:
        started = MovingJob(machines, folder, listed=listed, limit_s=limit_s)
        try:
            started.nodes[NNODES].when("[spare-waits]")
            started.trains_at("node0")
            yield started
        finally:
            started.close()


@pytest.fixture(scope="module", autouse=True)
def races() -> Iterator[subprocess.Popen[str]]:
    """Three jobs with random faults, started first and checked last, because they mostly wait."""
    command = [sys.executable, str(TRAINING.with_name("races.py")), "3", "5037", "hosts"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        yield running


def test_job_with_a_host_list_continues_without_node_0(tmp_path: Path) -> None:
    at_once(partial(_loses_node_0, tmp_path, "host"), partial(_loses_node_0, tmp_path, "launcher"))


def _loses_node_0(folder: Path, lost: str) -> None:
    with job(folder / lost) as running:
        before = len(running.steps())
        if lost == "host":
            kill_everything(running.hosts[0])
        else:
            running.nodes[0].process.kill()
        running.moves()
        assert len(running.steps()) > before
        running.finishes(1, 2)


@pytest.mark.nightly
def test_job_without_a_host_list_ends_without_node_0_and_reports_why(tmp_path: Path) -> None:
    with job(tmp_path, listed=False, limit_s="10") as running:
        kill_everything(running.hosts[0])
        assert [node.code() for node in running.nodes[1:]] == [ABSENT, ABSENT], running.text()
        assert running.nodes[1].said("node 0 is lost and the job cannot move: "), running.text()


@pytest.mark.nightly
def test_returning_node_0_waits_as_a_spare(tmp_path: Path) -> None:
    at_once(partial(_comes_back, tmp_path, "stopped"), partial(_comes_back, tmp_path, "cut off"))


def _comes_back(folder: Path, way: str) -> None:
    with job(folder / way) as running:
        if way == "stopped":
            running.signal(0, signal.SIGSTOP)
        else:
            running.hosts[0].cut()
        running.moves()
        if way == "stopped":
            running.signal(0, signal.SIGCONT)
        else:
            running.hosts[0].heal()
        running.nodes[0].when("[spare-waits]")
        running.trains_at(SPARE)
        kill_everything(running.hosts[1])  # and it is as good a spare as any
        until(lambda: running.nodes[0].said("now replaces node 1"), running.text)
        running.trains_at(SPARE)
        running.finishes(0, 2)


def test_job_survives_any_lost_node_and_never_runs_twice(races: subprocess.Popen[str]) -> None:
    out, errors = races.communicate(timeout=LIMIT_S)
    jobs = [json.loads(line) for line in out.splitlines()]
    assert len(jobs) == 3, errors
    assert [job for job in jobs if job["wrong"]] == []
