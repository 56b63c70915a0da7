"""A disk that hangs costs the log, after a while, and never holds the training up."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from platform_launch.console import log_writer
from platform_launch.console.log import LogFile
from platform_launch.console.log_writer import LogWriter
from platform_launch.events import Event
from tests.supervise.lab import Supervise, python


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Path]:
    """A file that takes 64 KiB, and then nothing: a pipe that nobody reads."""
    path = tmp_path / "train.log"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield path
    os.close(reading)


def test_a_training_goes_on_while_its_log_hangs_and_ends_with_a_line_of_it(
    supervise: Supervise, hung: Path
) -> None:
    run = supervise(*python("for i in range(3000): print(i, 'x' * 80)"), log_path=str(hung))
    outcome = run.finish()
    assert (outcome["exit_code"], outcome["log_path"]) == (0, None)
    assert run.output.count(b"cannot write the log any more") == 1
    assert b"the disk has taken nothing for" in run.output
    assert [line for line in run.output.splitlines() if line.startswith(b"2999 ")]


def test_a_thread_that_cannot_be_started_costs_the_log_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_named: object) -> None:
        raise RuntimeError("can't start new thread")

    told: list[Event] = []
    monkeypatch.setattr(log_writer, "Thread", refuse)
    log = LogFile(tmp_path / "train.log", told.append)
    log.open()
    log.append(b"a line\n", None)
    assert [one.id for one in told] == ["log-lost"]
    assert log.tail == b"a line\n"


def test_a_fault_of_the_writer_costs_the_log_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Event] = []
    monkeypatch.setattr(LogWriter, "_write", lambda _writer, _data: 1 / 0)
    log = LogFile(tmp_path / "train.log", told.append)
    log.open()
    log.append(b"a line\n", None)
    log.close()
    assert [one.id for one in told] == ["log-lost"]


def fill(writer: LogWriter) -> None:
    for _ in range(1000):
        writer.write(b"x" * 1000)


def test_a_full_queue_is_waited_for_and_then_given_up(hung: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PATIENCE_S", "_FULL_S"):
        monkeypatch.setattr(log_writer, name, 0.05)
    monkeypatch.setattr(log_writer, "_MOST_QUEUED_BYTES", 1000)
    writer = LogWriter(os.open(hung, os.O_WRONLY))
    with pytest.raises(OSError, match="the disk has taken nothing") as raised:
        fill(writer)
    assert raised.value.errno == errno.ETIMEDOUT


def test_a_disk_that_hangs_with_room_in_the_queue_is_given_up_after_minutes(
    hung: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(log_writer, "_HUNG_S", 0.0)
    writer = LogWriter(os.open(hung, os.O_WRONLY))
    with pytest.raises(OSError, match="the disk has taken nothing"):
        fill(writer)


def test_a_log_keeps_its_head_and_its_tail_and_says_what_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    log = LogFile(path, lambda _event: None, most_bytes=100_000)
    log.open()
    for number in range(20_000):
        log.append(b"line %d of the training\n" % number, log)
    log.close()
    lines = path.read_text().splitlines()
    assert path.stat().st_size < 100_000
    assert lines[0] == "line 0 of the training"
    assert lines[-1] == "line 19999 of the training"
    (cut,) = [line for line in lines if "[log-cut]" in line]
    assert "MiB omitted from the log here" in cut
    kept = [int(line.split()[1]) for line in lines if line.endswith("training") and line.startswith("line")]
    assert kept == sorted(kept)


def test_the_end_of_the_output_is_in_memory_where_there_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told: list[Event] = []
    log = LogFile(tmp_path / "file" / "train.log", told.append)
    log.open()
    for number in range(100_000):
        log.append(b"%d\n" % number, log)
    assert [event.id for event in told] == ["log-lost"]
    assert log.tail.endswith(b"\n99999\n")
    assert len(log.tail) <= 256 * 1024
