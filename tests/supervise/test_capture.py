"""Short questions to programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from platform_launch.supervise import Command, capture
from tests.lab.waiting import LIMIT_S, until
from tests.supervise.lab import alive

ENV = dict(os.environ)


def test_output_errors_and_code_come_back_apart() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    answer = capture(Command((sys.executable, "-c", code), ENV), timeout_s=LIMIT_S)
    assert (answer.exit_code, answer.stdout, answer.stderr) == (3, "out\n", "err\n")


def test_each_line_is_heard_as_it_comes_and_is_part_of_the_answer(tmp_path: Path) -> None:
    heard: list[str] = []

    def hear(line: str) -> None:
        heard.append(line)
        (tmp_path / "heard").touch()

    code = f"""
import pathlib, sys, time
print('first', flush=True)
while not pathlib.Path({str(tmp_path / "heard")!r}).exists():
    time.sleep(0.01)
print('last')
print('err', file=sys.stderr)
"""
    answer = capture(Command((sys.executable, "-c", code), ENV), timeout_s=LIMIT_S, on_line=hear)
    assert heard == ["first\n", "last\n"]
    assert (answer.exit_code, answer.stdout, answer.stderr) == (0, "first\nlast\n", "err\n")


def test_a_signal_is_128_and_its_number() -> None:
    assert capture(Command(("sh", "-c", "kill -9 $$"), ENV), timeout_s=LIMIT_S).exit_code == 137


def test_a_missing_program_and_one_that_cannot_run_have_the_codes_of_a_shell(tmp_path: Path) -> None:
    missing = capture(Command(("/no/such program",), ENV), timeout_s=LIMIT_S)
    assert (missing.exit_code, missing.stderr) == (127, "/no/such program: No such file or directory")
    assert capture(Command((str(tmp_path),), ENV), timeout_s=LIMIT_S).exit_code == 126


def test_out_of_time_the_whole_group_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    answer = capture(Command(("sh", "-c", f"sleep 6000 & echo $! > '{pid_file}'; wait"), ENV), timeout_s=2)
    assert answer.exit_code == 124
    until(lambda: not alive(int(pid_file.read_text())))


def test_bytes_that_are_no_text_do_no_harm() -> None:
    answer = capture(Command(("printf", r"\377ok"), ENV), timeout_s=LIMIT_S)
    assert answer.stdout == "\ufffdok"


def test_a_program_sees_no_input_and_its_own_directory(tmp_path: Path) -> None:
    answer = capture(Command(("sh", "-c", "cat; pwd"), ENV, cwd=tmp_path), timeout_s=LIMIT_S)
    assert answer.stdout.strip() == str(tmp_path)
