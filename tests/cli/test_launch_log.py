"""What a launch says, on the terminal and in its log: the same lines, and success only when it is one."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from platform_launch.why import explain_file

MAIN = Path(__file__).resolve().parents[2] / "platform_launch" / "__main__.py"
LIMIT_S = 60


def command(logs: Path, script: Path, *options: str) -> list[str]:
    run = [sys.executable, str(MAIN), "run", "--launcher", "python", "--script", str(script)]
    return [*run, "--log-dir", str(logs), *options]


def environment(**variables: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables}


def node_of_two(rank: int) -> dict[str, str]:
    """Return a node of a job of two on this machine, whose other node never comes."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"MASTER_PORT": str(one.getsockname()[1]), "INIT_MASTER_PORT": str(other.getsockname()[1])}
    return environment(WORLD_SIZE="2", RANK=str(rank), MASTER_ADDR="127.0.0.1", **ports)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import os, time\nprint('training', flush=True)\ntime.sleep(float(os.environ['S']))\n")
    return path


@pytest.fixture
def started(script: Path) -> Iterator[subprocess.Popen[str]]:
    """A launch of one node whose training runs."""
    process = subprocess.Popen(
        command(script.parent / "logs", script),
        env=environment(S="600"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        yield process
        process.kill()
        process.wait(LIMIT_S)


def test_the_log_holds_every_line_of_launcher_and_training_in_their_order(script: Path) -> None:
    logs = script.parent / "logs"
    done = subprocess.run(
        command(logs, script), env=environment(S="0"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    (log,) = logs.glob("*.log")
    assert log.read_text() == done.stdout
    assert f"[INFO] log: {log}" in done.stdout
    assert [line for line in done.stdout.splitlines() if "[SUCCESS]" in line] == [
        done.stdout.splitlines()[-3]  # before the places of log and record
    ]
    assert explain_file(log).kind == "finished"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_refused_roll_call_leaves_its_reason_in_the_log_it_announced(script: Path, rank: int) -> None:
    logs = script.parent / "logs"
    done = subprocess.run(
        command(logs, script, "--roll-call-timeout", "3"),
        env=node_of_two(rank), capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 75, done.stderr
    (log,) = logs.glob("*.log")
    assert f"log: {log}" in done.stderr
    text = log.read_text()
    reason, hint = done.stderr.splitlines()[-2:]
    assert reason.startswith("error: ")
    assert text.endswith(f"[node {rank}] {reason}\n[node {rank}] {hint}\n")
    assert "[SUCCESS]" not in text
    assert "roll call: 2 nodes meet at 127.0.0.1:" in text
    assert (explain_file(log).kind, explain_file(log).cause) == ("cause", "nodes_absent")


def test_a_refusal_of_the_doctor_is_in_the_log(tmp_path: Path, script: Path) -> None:
    logs = tmp_path / "logs"
    with socket.create_server(("", 0)) as taken:
        done = subprocess.run(
            command(logs, script, "--launcher", "torchrun", "--master-port", str(taken.getsockname()[1])),
            env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 69, done.stderr
    (log,) = logs.glob("*.log")
    assert explain_file(log).cause == "launch_refused"


def test_a_log_that_cannot_be_written_is_not_announced(tmp_path: Path, script: Path) -> None:
    logs = tmp_path / "logs"
    logs.write_text("no folder")
    done = subprocess.run(
        command(logs, script, "--no-doctor"), env=environment(S="0"), capture_output=True, text=True,
        timeout=LIMIT_S, check=True,
    )  # fmt: skip
    assert "no log file from here on" in done.stderr
    assert not re.search(r"log: .*\.log", done.stderr)


def test_ctrl_c_is_a_warning_and_no_error(started: subprocess.Popen[str], tmp_path: Path) -> None:
    assert started.stdout is not None
    while started.stdout.readline() != "training\n":
        assert started.poll() is None
    started.send_signal(signal.SIGINT)
    rest = started.stdout.read()
    assert started.wait(LIMIT_S) == 130
    assert "[ERROR]" not in rest
    assert "[WARN] training was stopped after" in rest
    assert explain_file(next((tmp_path / "logs").glob("*.log"))).cause == "interrupted"
