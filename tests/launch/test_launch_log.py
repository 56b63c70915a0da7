"""What a launch says, on the terminal and in its log: the same lines, and success only when it is one."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from platform_launch.events import beside
from platform_launch.why.explaining import explain_file
from tests.lab.disk import disk, requires_mount
from tests.lab.needs import requires_root
from tests.lab.port import reserved_port
from tests.lab.waiting import LIMIT_S

MAIN = Path(__file__).resolve().parents[2] / "platform_launch" / "__main__.py"


def command(logs: Path, script: Path, *options: str) -> list[str]:
    run = [sys.executable, str(MAIN), "run", "--launcher", "python", "--script", str(script)]
    return [*run, "--log-dir", str(logs), *options]


def environment(**variables: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables}


@contextmanager
def node_of_two(rank: int) -> Iterator[dict[str, str]]:
    """Yield the variables of a node of a job of two on this machine, whose other node never comes."""
    with reserved_port() as one, reserved_port() as other:
        ports = {"MASTER_PORT": str(one), "INIT_MASTER_PORT": str(other)}
        yield environment(WORLD_SIZE="2", RANK=str(rank), MASTER_ADDR="127.0.0.1", **ports)


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
        command(logs, script, "--verbose"), env=environment(S="0"), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    (log,) = logs.glob("*.log")
    assert log.read_text() == done.stdout
    assert f"[INFO] log: {log}" in done.stdout
    (success,) = [line for line in done.stdout.splitlines() if "[SUCCESS]" in line]
    assert success.endswith("[training-finished]")
    assert explain_file(log).kind == "finished"


def test_a_training_that_failed_in_silence_is_not_said_to_run_still(script: Path) -> None:
    script.write_text("raise SystemExit(3)")
    logs = script.parent / "logs"
    done = subprocess.run(
        command(logs, script), env=environment(), capture_output=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 3
    (log,) = logs.glob("*.log")
    assert {told["id"] for told in map(json.loads, beside(log).read_text().splitlines())} >= {"verdict"}
    assert "this launch has no end" not in log.read_text()
    assert "a process ended with exit code 3 [verdict]" in log.read_text()


def test_a_training_that_was_killed_in_silence_is_said_to_be_killed(script: Path) -> None:
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    logs = script.parent / "logs"
    done = subprocess.run(
        command(logs, script), env=environment(), capture_output=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 137
    (log,) = logs.glob("*.log")
    told = [json.loads(line) for line in beside(log).read_text().splitlines()]
    (verdict,) = [one for one in told if one["id"] == "verdict"]
    assert verdict["fields"]["cause"] in ("killed", "killed_from_outside")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_refused_roll_call_leaves_its_reason_in_the_log_it_announced(script: Path, rank: int) -> None:
    logs = script.parent / "logs"
    with node_of_two(rank) as variables:
        done = subprocess.run(
            command(logs, script, "--roll-call-timeout", "3"),
            env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 75, done.stderr
    (log,) = logs.glob("*.log")
    # Other nodes do not repeat what node 0 says.
    assert (f"log: {log}" in done.stderr) == (rank == 0)
    text = log.read_text()
    reason, hint = done.stderr.splitlines()[-2:]
    assert reason.startswith("error: ")
    assert text.endswith(f"[node {rank}] {reason}\n[node {rank}] {hint}\n")
    assert "[SUCCESS]" not in text
    assert " s for 2 nodes at 127.0.0.1:" in text
    assert (explain_file(log).kind, explain_file(log).cause) == ("cause", "nodes_absent")


def test_a_refusal_of_the_doctor_is_in_the_log(tmp_path: Path, script: Path) -> None:
    logs = tmp_path / "logs"
    with socket.create_server(("", 0)) as taken:
        done = subprocess.run(
            command(logs, script, "--launcher", "torchrun", "--master-port", str(taken.getsockname()[1])),
            env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 65, done.stderr
    (log,) = logs.glob("*.log")
    assert explain_file(log).cause == "launch_refused"


def test_two_launchers_of_one_name_write_two_logs_and_two_records(script: Path) -> None:
    logs = script.parent / "logs"
    arguments = command(logs, script, "--job-name", "same", "--no-doctor")
    both = [
        subprocess.Popen(
            arguments, env=environment(S="0.5"), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
        for _ in range(2)
    ]
    assert [process.wait(LIMIT_S) for process in both] == [0, 0]
    for ending in ("*.log", "*.json", "*.events.jsonl"):
        assert len(list(logs.glob(ending))) == 2, sorted(logs.iterdir())
    for log in logs.glob("*.log"):
        assert log.read_text().count("training\n") == 1
        assert explain_file(log).kind == "finished"


def test_a_record_says_when_and_survives_an_argument_that_is_no_text(script: Path) -> None:
    logs = script.parent / "logs"
    arguments: list[str | bytes] = [
        *command(logs, script, "--no-doctor"),
        "--",
        "--hub-token",
        "hf_secret",
        b"--name=\xff",
    ]
    done = subprocess.run(
        arguments, env=environment(S="0"), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    (path,) = logs.glob("*.json")
    record = json.loads(path.read_text())
    assert record["argv"][-1] == "--name=\udcff"
    assert "hf_secret" not in path.read_text()
    times = [datetime.strptime(record[name], "%Y-%m-%dT%H:%M:%SZ") for name in ("started", "ended")]
    assert times == sorted(times)
    assert path.stat().st_mode & 0o777 <= 0o640


def test_the_events_of_a_launch_lie_beside_its_log(script: Path) -> None:
    logs = script.parent / "logs"
    subprocess.run(
        command(logs, script),
        env=environment(S="0", NCCL_MADE_UP="1"),
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    (path,) = logs.glob("*.events.jsonl")
    said = {one["id"]: one for one in map(json.loads, path.read_text().splitlines())}
    assert said["launch-opened"]["fields"]["nnodes"] == 1
    assert said["variable-unknown"]["where"] == "NCCL_MADE_UP"
    assert said["training-finished"]["fields"]["exit_code"] == 0


@pytest.mark.parametrize("redirection", ["2>/dev/full", ">/dev/full 2>&1", "2>&-", ">&- 2>&-"])
def test_what_becomes_of_our_words_never_matters(script: Path, redirection: str) -> None:
    logs = script.parent / "logs"
    line = f"{shlex.join(command(logs, script, '--no-doctor'))} {redirection}"
    assert (
        subprocess.run(["sh", "-c", line], env=environment(S="0"), timeout=LIMIT_S, check=False).returncode
        == 0
    )
    (log,) = logs.glob("*.log")
    assert explain_file(log).kind == "finished"


def test_too_few_descriptors_are_refused_in_one_line(script: Path) -> None:
    line = f"ulimit -n 12; exec {shlex.join(command(script.parent / 'logs', script))}"
    done = subprocess.run(
        ["sh", "-c", line], env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 67
    limit = "error: only 12 files may be open at a time (ulimit -n): expected at least 32"
    assert done.stderr.startswith(limit)
    assert "Traceback" not in done.stderr


def test_a_stuck_reader_does_not_keep_a_launch_from_ending(tmp_path: Path) -> None:
    script = tmp_path / "loud.py"
    script.write_text("import time\nwhile True:\n    print('x' * 1000, flush=True)\n    time.sleep(0.001)\n")
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            command(tmp_path / "logs", script, "--no-doctor", "--grace-period", "1"),
            env=environment(), stdout=writing, stderr=writing,
        )  # fmt: skip
        deadline = time.monotonic() + LIMIT_S
        while sum(log.stat().st_size for log in (tmp_path / "logs").glob("*.log")) < 30_000:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) in (137, 143)
    finally:
        os.close(reading)
        os.close(writing)


@requires_root
def test_a_planted_folder_for_compiled_code_is_not_used(tmp_path: Path, script: Path) -> None:
    planted = tmp_path / "tmp" / f"platform_launch_{os.getuid()}"
    planted.mkdir(parents=True)
    os.chown(planted, 12345, 12345)
    script.write_text("import os\nprint('extensions:', os.environ.get('TORCH_EXTENSIONS_DIR'))\n")
    variables = environment(TMPDIR=str(tmp_path / "tmp"))
    run = command(tmp_path / "logs", script)
    done = subprocess.run(run, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert "extensions: None" in done.stdout
    assert "it belongs to user 12345" in done.stderr
    assert "[temporary-not-private]" in done.stderr
    planted.rmdir()
    done = subprocess.run(run, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert f"extensions: {planted}/" in done.stdout
    assert planted.stat().st_mode & 0o777 == 0o700


def test_a_log_that_cannot_be_written_is_not_announced(tmp_path: Path, script: Path) -> None:
    logs = tmp_path / "logs"
    logs.write_text("no folder")
    done = subprocess.run(
        command(logs, script, "--no-doctor"), env=environment(S="0"), capture_output=True, text=True,
        timeout=LIMIT_S, check=True,
    )  # fmt: skip
    assert done.stderr.count("cannot write the log any more") == 1
    assert not re.search(r"log: .*\.log", done.stderr)


@requires_mount
@pytest.mark.parametrize("size", ["1k", "64k"])
def test_a_log_whose_disk_is_full_is_told_lost_once_and_last(tmp_path: Path, script: Path, size: str) -> None:
    script.write_text("for number in range(2000): print(number, 'x' * 80)\n")
    with disk(tmp_path / "small", f"size={size}") as folder:
        done = subprocess.run(
            command(folder, script, "--no-doctor"), env=environment(), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=True,
        )  # fmt: skip
    ours = [line for line in done.stdout.splitlines() if line.endswith(("[log-lost]", "[log-opened]"))]
    assert [line.rpartition(" ")[2] for line in ours] == ["[log-opened]", "[log-lost]"]
    assert "1999 xxx" in done.stdout


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


def test_paths_that_nobody_may_look_into_do_not_keep_a_training_from_its_end(script: Path) -> None:
    """What an image's user left for others, such as PYTHONPATH=/root/lib; and a folder that was removed."""
    closed = f"/{'x' * 300}"  # no such name can be looked up, as in a folder of root's by somebody else
    line = f"mkdir gone && cd gone && rmdir ../gone && exec {shlex.join(command(Path(closed), script))}"
    variables = dict.fromkeys(("PYTHONPATH", "TORCH_EXTENSIONS_DIR", "VIRTUAL_ENV", "HOME"), closed)
    done = subprocess.run(
        ["sh", "-c", line],
        env=environment(S="0", **variables),
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "training\n" in done.stdout
    assert "[log-lost]" in done.stderr
    assert "Traceback" not in done.stderr
