"""The command's code is the supervisor's code."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.errors import LaunchError
from platform_launch.supervise import Command, Supervisor
from tests.supervise.lab import Supervise, python


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_the_childs_code_is_returned(supervise: Supervise, code: int) -> None:
    outcome = supervise("sh", "-c", f"exit {code}").finish()
    assert outcome["exit_code"] == code
    assert outcome["signal"] is None
    assert outcome["killed"] == []


@pytest.mark.parametrize(
    ("number", "name"), [(9, "SIGKILL"), (15, "SIGTERM"), (11, "SIGSEGV"), (40, "signal 40")]
)
def test_a_death_by_signal_is_128_and_its_number(supervise: Supervise, number: int, name: str) -> None:
    outcome = supervise(*python(f"import os; os.kill(os.getpid(), {number})")).finish()
    assert outcome["exit_code"] == 128 + number
    assert outcome["signal"] == name


def test_a_program_that_is_not_there_is_127_and_named_in_the_log(supervise: Supervise) -> None:
    run = supervise("/nowhere/accelerate")
    assert run.finish()["exit_code"] == 127
    assert "cannot start the training: /nowhere/accelerate: No such file or directory" in run.log


def test_a_file_that_is_no_program_is_126(supervise: Supervise, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()")
    run = supervise(str(script))
    assert run.finish()["exit_code"] == 126
    assert b"Permission denied" in run.output


def test_the_command_runs_in_its_directory(supervise: Supervise, tmp_path: Path) -> None:
    run = supervise("pwd", cwd=str(tmp_path))
    run.finish()
    assert run.output.decode() == f"{tmp_path}\n"


def test_a_directory_that_is_not_there_is_named(supervise: Supervise) -> None:
    run = supervise("pwd", cwd="/nowhere/project")
    assert run.finish()["exit_code"] == 127
    assert "cannot start the training: /nowhere/project: No such file or directory" in run.log


def test_a_command_too_long_for_the_system_is_refused_with_its_reason() -> None:
    with pytest.raises(LaunchError, match="cannot start a process for echo: Argument list too long"):
        Supervisor(Command(("echo", "x" * 3_000_000), {})).run()


def test_the_command_finds_signals_as_a_shell_leaves_them(supervise: Supervise) -> None:
    status = supervise("grep", "-E", "SigIgn|SigBlk", "/proc/self/status")
    status.finish()
    blocked, ignored = (int(mask, 16) for mask in status.output.split()[1::2])
    # glibc's posix_spawn leaves its own signals 32 and 33 ignored; no program can see or use them.
    assert (blocked, ignored & 0x7FFFFFFF) == (0, 0)


def test_an_ignored_hangup_stays_ignored_as_nohup_wants(supervise: Supervise) -> None:
    code = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    run = supervise(*python(code), before=("nohup",))
    run.finish()
    assert run.output.splitlines()[-1] == b"True"


def test_only_standard_descriptors_reach_the_command(supervise: Supervise) -> None:
    run = supervise("ls", "/proc/self/fd")
    run.finish()
    assert run.output.split() == [b"0", b"1", b"2", b"3"]  # 3 is ls reading the folder
