"""A training's own exit code comes through launchers that make 1 of every failure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from platform_launch.events import Event, line
from platform_launch.launch.exit_code import (
    agreed_exit_code,
    exit_file,
    left_a_signal_traceback,
    left_an_exit_barrier,
)
from platform_launch.supervise import Command, Outcome
from tests.lab.needs import takes_long
from tests.lab.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
# What stands between launcher and training: it passes no exit code on.
BETWEEN = "import subprocess, sys; sys.exit(1 if subprocess.call([sys.executable, {script!r}]) else 0)"


def run(tmp_path: Path, written: str, *, code: int = 66) -> subprocess.CompletedProcess[str]:
    inner, outer = tmp_path / "inner.py", tmp_path / "train.py"
    inner.write_text(
        "import os, sys\n"
        f"open(os.environ['PLATFORM_LAUNCH_EXIT_FILE'], 'w').write({written!r})\n"
        f"sys.exit({code})\n"
    )
    outer.write_text(BETWEEN.format(script=str(inner)))
    return subprocess.run(
        [
            *(sys.executable, "-m", "platform_launch", "run", "--launcher", "python"),
            *("--script", outer, "--log-dir", tmp_path / "logs"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_refusal_of_the_training_stays_a_refusal(tmp_path: Path) -> None:
    done = run(tmp_path, '{"exit_code": 66, "reason": "no video in /data"}')
    assert done.returncode == 66, done.stderr
    (record,) = (path for path in (tmp_path / "logs").glob("train_*.json"))
    said = json.loads(record.read_text())
    assert said["outcome"]["exit_code"] == 66
    assert said["outcome"]["why"]["cause"] == "training_refused"
    assert "no video in /data" in said["outcome"]["why"]["evidence"][0]["text"]


def test_a_reason_is_quoted_with_a_code_that_came_through_as_it_was(tmp_path: Path) -> None:
    told: list[Event] = []
    with exit_file() as file:
        (path,) = file.passed_to(Command(("true",), {})).env.values()
        Path(path).write_text('{"exit_code": 3, "reason": "the loss is\\u202e not a number"}')
        for code, stopped_by in ((3, None), (4, None), (3, "SIGTERM")):
            ended = Outcome(code, None, 1.0, None, stopped_by, ())
            assert file.corrected(ended, told.append) == ended
    assert [(said.id, said.fields["exit_code"]) for said in told] == [("training-reason", 3)]
    assert "\u202e" not in line(told[0])


@pytest.mark.parametrize(
    "written",
    [
        "",
        "[]",
        '{"exit_code": true}',
        '{"exit_code": 0}',
        '{"exit_code": 700}',
        '{"exit_code": "66"}',
        "{" * 9999,
    ],
)
def test_what_is_no_exit_code_changes_nothing(written: str) -> None:
    ended = Outcome(1, None, 1.0, None, None, ())
    with exit_file() as file:
        (path,) = file.passed_to(Command(("true",), {})).env.values()
        Path(path).write_text(written)
        assert file.corrected(ended, _nothing_is_told) == ended


def _nothing_is_told(said: Event) -> None:
    pytest.fail(f"told: {said}")


def test_a_launch_goes_on_with_the_launchers_code_where_the_file_holds_none(tmp_path: Path) -> None:
    assert run(tmp_path, "{" * 9999).returncode == 1


def test_a_training_that_succeeds_is_a_success_whatever_the_file_says(tmp_path: Path) -> None:
    assert run(tmp_path, '{"exit_code": 66, "reason": "of an earlier try"}', code=0).returncode == 0


@takes_long
@pytest.mark.train
@pytest.mark.parametrize("launcher", [pytest.param("accelerate", marks=pytest.mark.nightly), "torchrun"])
def test_the_exit_code_of_the_ranks_is_the_job_s_under_torchrun_too(launcher: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; sys.exit(42)")
    command = [sys.executable, "-m", "platform_launch", "run", "--launcher", launcher, "--no-doctor"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "1", "--script", script, "--log-dir", tmp_path / "logs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 42, done.stdout + done.stderr


def summary(*codes: int) -> bytes:
    """The end of torchrun's output, as torch 2.13 prints it."""
    entries = [
        f"[{number}]:\n  time      : 2026-11-28_20:59:25\n  host      : gn0\n  rank      : {number} "
        f"(local_rank: {number})\n  exitcode  : {code} (pid: {4711 + number})\n  error_file: <N/A>\n"
        for number, code in enumerate(codes)
    ]
    line = "=" * 60
    return (
        f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n{line}\ntrain.py FAILED\n"
        f"Failures:\n{''.join(entries[1:])}Root Cause (first observed failure):\n{entries[0]}{line}\n"
    ).encode()


@pytest.mark.parametrize(
    ("output", "code"),
    [
        (summary(42), 42),
        (summary(42, 42), 42),
        (summary(3) + b"trying again\n" + summary(42), 42),
        (summary(42, 3), None),
        (summary(-9), None),
        (summary(42, -15), None),
        (b"  exitcode  : 42 (pid: 7)\n", None),
        (b"ChildFailedError", None),
        (b"", None),
    ],
)
def test_ranks_that_agree_have_an_exit_code(output: bytes, code: int | None) -> None:
    assert agreed_exit_code(b"Step 3\n" + output) == code


def test_what_the_training_wrote_itself_comes_before_the_summary() -> None:
    with exit_file() as file:
        (path,) = file.passed_to(Command(("true",), {})).env.values()
        Path(path).write_text('{"exit_code": 66}')
        ended = Outcome(1, None, 1.0, None, None, (), summary(42))
        assert file.corrected(ended, _nothing_is_told).exit_code == 66
        file.clear()
        assert file.corrected(ended, _nothing_is_told).exit_code == 42


def test_a_store_that_was_gone_at_the_exit_barrier_is_recognised() -> None:
    assert left_an_exit_barrier(
        b"step 3\nE1122 11:49:35.933000 4635 torch/distributed/elastic/agent/server/api.py:1009] "
        b"Error waiting on exit barrier. Elapsed: 0.01 seconds\nTraceback (most recent call last):\n"
    )
    assert not left_an_exit_barrier(b"step 3\n")
    assert not left_an_exit_barrier(b"")


def test_a_traceback_with_which_torchrun_answers_a_signal_is_recognised() -> None:
    assert left_a_signal_traceback(
        b'    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)\n'
        b"torch.distributed.elastic.multiprocessing.api.SignalException: Process 8779 got signal: 15\n"
    )
    assert not left_a_signal_traceback(b"Terminated\n")
