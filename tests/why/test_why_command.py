from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from platform_launch.cli.why import command
from tests.lab.waiting import LIMIT_S


def why(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "platform_launch", "why", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=LIMIT_S, check=False)


def test_answer_is_printed_one_fact_a_line(logs: Path) -> None:
    done = why(str(logs / "exception_one_rank.log"))
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    assert lines[0] == (
        "cause:      ValueError: latents have 15 channels, expected 16 (clip 3) [python_exception] on rank 1"
    )
    assert lines[2] == "raised at:  /workspace/raise_rank1.py:6 in step"
    assert "retry:      no: the exception will probably be raised again" in lines
    assert "then:       1 other rank: a connection to another process was lost" in lines


def test_json_stands_alone_on_standard_output(logs: Path) -> None:
    done = why("--format", "json", str(logs / "two_nodes"))
    document = json.loads(done.stdout)
    assert (document["cause"], document["node"], document["rank"]) == ("python_exception", 1, 1)
    assert document["evidence"][0]["line"] == 10
    assert len(document["logs"]) == 2


def test_standard_input_of_kubectl_is_read(logs: Path) -> None:
    both = b"".join(
        b"[pod/job-%d-abcde/main] %s" % (node, line)
        for node, log in enumerate(sorted((logs / "two_nodes").iterdir()))
        for line in log.read_bytes().splitlines(keepends=True)
    )
    done = why("-", stdin=both)
    assert done.returncode == 0
    assert b"RuntimeError: corrupt clip in batch 1" in done.stdout
    assert b"pod job-1-abcde" in done.stdout


def test_unknown_is_an_answer_too() -> None:
    done = why("-", stdin=b"ERROR something odd\n")
    assert done.returncode == 0
    assert done.stdout.decode().splitlines()[0] == (
        "cause:      no known cause; this line may show it: -:1: ERROR something odd"
    )


def test_missing_log_is_an_error_of_input() -> None:
    done = why("/nowhere/a.log")
    assert done.returncode == 66
    assert done.stderr.decode().startswith("error: /nowhere/a.log does not exist")


def test_without_a_log_the_newest_launch_is_asked(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node, log in enumerate(sorted((logs / "two_nodes").iterdir())):
        (tmp_path / f"train_mine_node{node}_20261122-10000{node}.log").write_bytes(log.read_bytes())
    (tmp_path / "train_older_node0_20261121-100000.log").write_text(
        "RuntimeError: CUDA error: invalid device ordinal\n"
    )
    monkeypatch.setattr("platform_launch.cli.why.logs_folder", lambda: tmp_path)
    assert "corrupt clip in batch 1" in CliRunner().invoke(command, []).output
    assert "invalid_device" in CliRunner().invoke(command, ["--job", "older"]).output


def test_the_log_folder_is_named_as_a_launch_names_it(tmp_path: Path) -> None:
    for name, number in (("older", 1), ("newer", 2)):
        log = tmp_path / f"train_{name}_node0_2026112{number}-100000.log"
        log.write_text(f"ValueError: the {name} job's own error\n")
    folder = str(tmp_path)
    assert "newer job's own" in why("--log-dir", folder).stdout.decode()
    assert "older job's own" in why("--log-dir", folder, "--job", "older").stdout.decode()
    assert why("--log-dir", folder, folder).returncode == 64


def test_job_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "train_mine_node0_20261122-100000.log").touch()
    done = why("--job", "other", str(tmp_path))
    assert done.returncode == 66
    assert b"contains no log of job 'other', only of mine" in done.stderr


def test_job_beside_standard_input_is_an_error_of_usage() -> None:
    assert why("--job", "x", "-").returncode == 64


def test_json_says_whether_to_try_again_and_by_which_name_to_know_the_failure(logs: Path) -> None:
    document = json.loads(why("--format", "json", str(logs / "ib_port_down.log")).stdout)
    assert (document["retry"], document["where"]["host"]) == ("another_node", "gpu-2")
    assert document["retry_reason"]
    assert re.fullmatch(r"[0-9a-f]{16}", document["fingerprint"])


def test_command_imports_no_training_library(logs: Path) -> None:
    code = (
        "import sys; from platform_launch.cli import main;"
        f"main(['why', {str(logs / 'exception_one_rank.log')!r}]);"
        "print(sorted({'torch', 'accelerate', 'deepspeed', 'rich', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
