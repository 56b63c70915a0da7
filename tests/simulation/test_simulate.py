"""Several supervised nodes on one machine: whole lines, one fate."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.waiting import LIMIT_S, until
from tests.supervise.lab import DRIVER, ROOT, alive

SIMULATE = (
    "import json, os, sys\n"
    "from platform_launch.simulation.nodes import simulate\n"
    "from platform_launch.supervise import Command\n"
    "nodes = [Command(tuple(argv), dict(os.environ)) for argv in json.loads(sys.argv[1])]\n"
    "sys.exit(simulate(nodes, [f'node {i}' for i in range(len(nodes))], grace_s=float(sys.argv[2]))[0])\n"
)
Simulate = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def simulate() -> Iterator[Simulate]:
    """Start nodes, each a shell script under its own supervisor: ``simulate("exit 0", "exit 3")``."""
    started = []

    def start(*scripts: str, grace_s: float = 30.0) -> subprocess.Popen[str]:
        nodes = [
            [
                *(sys.executable, str(DRIVER)),
                json.dumps({"prefix": f"[node {rank}] ", "grace_s": grace_s, "outcome_path": os.devnull}),
                *("sh", "-c", script),
            ]
            for rank, script in enumerate(scripts)
        ]
        process = subprocess.Popen(
            [sys.executable, "-c", SIMULATE, json.dumps(nodes), str(grace_s)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait(LIMIT_S)
        assert process.stdout is not None
        process.stdout.close()


def test_all_nodes_done_is_success(simulate: Simulate) -> None:
    process = simulate("echo one", "echo two", "echo three")
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert sorted(output.splitlines()) == ["[node 0] one", "[node 1] two", "[node 2] three"]


def test_lines_of_several_nodes_are_never_torn(simulate: Simulate) -> None:
    script = "i=0; while [ $i -lt 200 ]; do printf 'half '; printf 'and half\\n'; i=$((i+1)); done"
    output, _ = simulate(script, script, script).communicate(timeout=LIMIT_S)
    lines = output.splitlines()
    assert len(lines) == 600
    assert all(re.fullmatch(r"\[node [012]\] half and half", line) for line in lines)


def test_the_first_failure_ends_all_and_is_the_result(simulate: Simulate, tmp_path: Path) -> None:
    ready = shlex.quote(str(tmp_path / "ready"))
    process = simulate(
        f"while [ ! -e {ready} ]; do sleep 0.05; done; exit 5",
        f"trap 'echo saved; exit 0' TERM; touch {ready}; sleep 6000 & wait",
    )
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 5
    assert "[INFO] node 0 ended with exit code 5: stopping the training" in output
    assert "[node 1] saved" in output


def test_a_node_killed_outright_ends_all(simulate: Simulate) -> None:
    process = simulate("kill -9 $PPID; sleep 60", "sleep 60")
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 137
    assert "node 0 ended with SIGKILL" in output


def test_a_node_that_fails_while_ending_does_not_hide_the_first(simulate: Simulate, tmp_path: Path) -> None:
    ready = shlex.quote(str(tmp_path / "ready"))
    process = simulate(
        f"while [ ! -e {ready} ]; do sleep 0.05; done; exit 5",
        f"trap 'exit 9' TERM; touch {ready}; sleep 6000 & wait",
    )
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 5


def test_one_ctrl_c_ends_all_nodes_nicely(simulate: Simulate) -> None:
    script = "trap 'echo saved; exit 0' INT; echo ready; while :; do sleep 0.05; done"
    process = simulate(script, script)
    assert process.stdout is not None
    for _ in range(2):
        assert "ready" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert output.count("saved") == 2


def test_a_killed_simulation_leaves_no_node_behind(simulate: Simulate) -> None:
    process = simulate("echo pid $$; sleep 60", "echo pid $$; sleep 60")
    assert process.stdout is not None
    pids = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
    process.kill()
    until(lambda: not any(map(alive, pids)))
