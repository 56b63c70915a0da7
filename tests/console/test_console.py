"""Speaking to a person: plain lines in pipes and logs, boxes on a terminal, and never in the way."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from platform_launch.console.screen import columns
from tests.lab.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TERM": "xterm", "LC_ALL": "C.UTF-8"}
SPEAK = """
import sys
from pathlib import Path
from platform_launch.console import Console
from platform_launch.errors import InputError
from platform_launch.events import Event, event
console = Console("[node 1] ", node_rank=1)
console.report(event("log-opened", path="before"))
if len(sys.argv) > 1:
    print(console.open_log(Path(sys.argv[1])))
console.stage(1, "Environment")
console.banner("opening", [("job", "demo"), ("empty", "")])
console.info("a fact of many words " + "and more words " * 10)
console.report(Event("variable-dead", "WARN", "NCCL_X", {"what": "nothing reads it", "hint": "unset it"}))
console.report(event("training-failed", exit_code=9, duration="4 s"))
error = InputError("no such file\\x1b[2J", "name another").known_as("refused-input")
console.log_error(error)
console.show_error(error)
console.close()
"""


def speak(*arguments: str, code: str = SPEAK, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**ENVIRONMENT, **variables}, capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip


def test_a_terminal_that_knows_no_width_has_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((0, 0)))
    assert columns() == 80


def on_a_terminal(columns: int, code: str = SPEAK, **variables: str) -> str:
    """Return what a terminal of so many columns shows, its own line ends taken out."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["sh", "-c", f'stty cols {columns} -onlcr <&2; exec "$0" -c "$1"', sys.executable, code],
        env={**ENVIRONMENT, **variables}, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    while True:
        try:
            said += os.read(ours, 65536)
        except OSError:  # EIO: its last writer is gone
            break
    os.close(ours)
    assert process.wait(LIMIT_S) == 0, said
    return said.decode()


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


def test_a_narrow_terminal_leaves_further_lines_their_room() -> None:
    lines = [one.rstrip() for one in plain(on_a_terminal(40))]
    begun = next(n for n, one in enumerate(lines) if "[ERROR] training" in one)
    assert lines[begun : begun + 2] == ["[node 1] [ERROR] training ended with", "  exit code 9 after 4 s"]


def test_lines_in_a_pipe_carry_the_time_and_end_with_the_events_mark() -> None:
    lines = speak().stderr.splitlines()
    assert all(re.match(r"\[node 1\] \d\d:\d\d:\d\d (?:\[[A-Z]+\] |== )", line) for line in lines[:-2]), lines
    said = [line.split(" ", 3)[3] for line in lines[:-2]]
    assert said[0] == "[INFO] log: before [log-opened]"
    assert said[3] == "[WARN] nothing reads it; unset it [variable-dead]"
    assert said[4] == "[ERROR] training ended with exit code 9 after 4 s [training-failed exit_code=9]"
    assert lines[-2:] == ["error: no such file\\x1b[2J [refused-input]", "hint:  name another"]
    assert len(lines[2]) > 120, "a pipe's lines are not broken"


def test_the_log_holds_the_same_lines_and_the_events_lie_beside_it(tmp_path: Path) -> None:
    os.umask(0o022)
    done = speak(str(tmp_path / "logs" / "train.log"))
    log = tmp_path / "logs" / "train.log"
    assert done.stdout == f"{log}\n"
    clock = re.compile(r"\d\d:\d\d:\d\d")
    said = [clock.sub("", line) for line in done.stderr.splitlines()][1:-2]
    kept = [clock.sub("", line) for line in log.read_text().splitlines()]
    assert kept[:-2] == said
    assert kept[-2:] == [f"[node 1] {line}" for line in done.stderr.splitlines()[-2:]]
    events = [
        json.loads(line) for line in (tmp_path / "logs" / "train.events.jsonl").read_text().splitlines()
    ]
    assert [(one["id"], one["level"], one["node_rank"]) for one in events] == [
        ("log-opened", "INFO", 1),
        ("variable-dead", "WARN", 1),
        ("training-failed", "ERROR", 1),
        ("refused-input", "ERROR", 1),
    ]
    assert events[2]["fields"] == {"exit_code": 9, "duration": "4 s"}
    assert {path.stat().st_mode & 0o777 for path in log.parent.iterdir()} == {0o640}


def test_a_name_that_is_taken_gives_another_log_and_other_events(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    assert speak(str(log)).stdout == f"{log}\n"
    first = log.read_text()
    assert speak(str(log)).stdout == f"{tmp_path / 'train-2.log'}\n"
    assert log.read_text() == first
    assert {path.name for path in tmp_path.iterdir()} == {
        *("train.log", "train.events.jsonl", "train-2.log", "train-2.events.jsonl"),
    }


def test_a_terminal_gets_boxes_and_lines_that_break_between_words() -> None:
    shown = on_a_terminal(80)
    assert "\x1b[" in shown
    lines = plain(shown)
    assert max(map(len, lines)) <= 80
    assert not any("12:" in line[:12] for line in lines)
    assert "[node 1] [ERROR] training ended with exit code 9 after 4 s" in [line.rstrip() for line in lines]
    words = " ".join(lines[next(n for n, line in enumerate(lines) if "a fact of" in line) :])
    assert re.search(r"(?:and\s+more\s+words\s+){9}and\s+more\s+words", words)
    assert not re.search(r"mor$|wor$", "\n".join(lines), re.MULTILINE)
    assert any("opening" in line and line.startswith("╭") for line in lines)
    assert any(re.match(r"│ job +demo +│", line) for line in lines)
    assert not any("empty" in line for line in lines)


def test_a_finding_keeps_its_name_on_a_terminal() -> None:
    assert any("[variable-dead]" in line for line in plain(on_a_terminal(120)))


def test_colours_can_be_asked_for_in_a_pipe_and_switched_off_on_a_terminal() -> None:
    forced = speak(FORCE_COLOR="1").stderr
    assert "\x1b[" in forced
    assert any(line.startswith("╭") for line in plain(forced))
    assert re.search(
        r"\d\d:\d\d:\d\d \[ERROR\] training ended .* \[training-failed exit_code=9\]",
        "\n".join(plain(forced)),
    )
    assert "\x1b[3" not in on_a_terminal(80, NO_COLOR="1")


TALK = """
import sys, time
from platform_launch.console import Console
console = Console()
began = time.monotonic()
for number in range(3000):
    console.info(f"{number} " + "x" * 500)
console.close()
print("survived", round(time.monotonic() - began), file=open(sys.argv[1], "w"))
"""


def survived(tmp_path: Path) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if (tmp_path / "out").exists() and (tmp_path / "out").read_text().startswith("survived"):
            return True
        time.sleep(0.05)
    return False


def test_a_reader_that_left_costs_nothing(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    subprocess.run(
        [sys.executable, "-c", TALK, str(tmp_path / "out")],
        env=ENVIRONMENT,
        stderr=writing,
        timeout=LIMIT_S,
        check=True,
    )
    os.close(writing)
    assert survived(tmp_path)


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "2</dev/null"])
def test_a_full_disk_or_a_closed_descriptor_costs_nothing(tmp_path: Path, redirection: str) -> None:
    subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" "$2" {redirection}', sys.executable, TALK, str(tmp_path / "out")],
        env=ENVIRONMENT, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    assert survived(tmp_path)


def test_a_reader_that_is_stuck_holds_nothing_up(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        subprocess.run(
            [sys.executable, "-c", TALK, str(tmp_path / "out")],
            env=ENVIRONMENT,
            stderr=writing,
            timeout=LIMIT_S,
            check=True,
        )
        assert survived(tmp_path)
        # What went into the pipe is whole up to its end.
        data = os.read(reading, 1 << 20).decode()
    finally:
        os.close(reading)
        os.close(writing)
    assert re.fullmatch(r"(?:\d\d:\d\d:\d\d \[INFO\] \d+ x+\n)+\S.*", data, re.DOTALL)


def test_a_reader_that_is_only_slow_gets_every_line(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", TALK, str(tmp_path / "out")],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if len(lines) % 100 == 0:
            time.sleep(0.01)
    assert process.wait(LIMIT_S) == 0
    process.stderr.close()
    assert [int(line.split()[2]) for line in lines] == list(range(3000))
