"""The lock of the output folder: a living training keeps it, a dead one does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from taehv_trainer.ending import leave_word
from taehv_trainer.errors import TrainingError
from taehv_trainer.lock import OutputLock

ROOT = Path(__file__).resolve().parents[2]
HOLD = (
    "import sys, time; from pathlib import Path; from taehv_trainer.lock import OutputLock;"
    "OutputLock(Path(sys.argv[1]), 'other', heartbeat_s=0.05).acquire(); print('held', flush=True);"
    "time.sleep(600)"
)


@contextmanager
def held_by_another(folder: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {"PYTHONPATH": str(ROOT / "examples" / "taehv")}
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
        holder.kill()


def as_if_elsewhere(folder: Path) -> None:
    """Make the lock look like that of another machine, whose process cannot be looked at."""
    lock = folder / ".lock"
    text = json.dumps(json.loads(lock.read_text()) | {"host": "elsewhere", "machine": "another"})
    with lock.open("r+") as file:  # the same file: its holder goes on touching it
        file.write(text)
        file.truncate()


def our_lock(folder: Path) -> OutputLock:
    return OutputLock(folder, "ours", heartbeat_s=0.05, silence_s=1.0)


def test_a_second_training_is_refused_and_told_who_writes_there(tmp_path: Path) -> None:
    with held_by_another(tmp_path) as holder:
        with pytest.raises(TrainingError, match=f"job other, host .*, pid {holder.pid}") as refusal:
            our_lock(tmp_path).acquire()
        assert "--output-dir" in refusal.value.hint


def test_what_a_killed_training_left_is_taken_over(tmp_path: Path) -> None:
    with held_by_another(tmp_path) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    lock = our_lock(tmp_path)
    assert f"pid {holder.pid}" in lock.acquire()
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_another_process_has_now_does_not_keep_it(tmp_path: Path) -> None:
    with held_by_another(tmp_path) as holder:
        holder.kill()
        holder.wait()
    lock = tmp_path / ".lock"
    lock.write_text(json.dumps(json.loads(lock.read_text()) | {"pid": os.getppid()}))
    assert our_lock(tmp_path).acquire()


def test_a_training_elsewhere_is_known_to_live_by_its_heartbeat(tmp_path: Path) -> None:
    lock = our_lock(tmp_path)
    lock.acquire()
    own = lock._own
    # The holder's heart beats by its own file; another machine sees only that the file is touched.
    lock._own = type(own)(own.job, "elsewhere", own.pid, "another", own.started)
    as_if_elsewhere(tmp_path)
    with pytest.raises(TrainingError, match="host elsewhere"):
        our_lock(tmp_path).acquire()
    lock.release()


def test_a_training_elsewhere_whose_heart_stopped_is_taken_over(tmp_path: Path) -> None:
    with held_by_another(tmp_path) as holder:
        holder.kill()
        holder.wait()
    as_if_elsewhere(tmp_path)
    lock = our_lock(tmp_path)
    assert "host elsewhere" in lock.acquire()
    lock.release()


def test_a_lock_that_says_nothing_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("{")
    assert our_lock(tmp_path).acquire()


def test_of_many_that_come_at_once_one_gets_it(tmp_path: Path) -> None:
    with held_by_another(tmp_path) as holder:
        holder.kill()
        holder.wait()
    environment = {"PYTHONPATH": str(ROOT / "examples" / "taehv")}
    command = [sys.executable, "-c", HOLD.replace("time.sleep(600)", "sys.stdin.read()"), str(tmp_path)]
    comers = [
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(6)
    ]
    said = [comer.stdout.readline() if comer.stdout else "" for comer in comers]
    for comer in comers:
        comer.communicate()
    assert sorted(said) == [""] * 5 + ["held\n"]


def test_the_first_word_on_how_it_ended_stays(tmp_path: Path) -> None:
    file = tmp_path / "exit.json"
    leave_word(66, "data_root='x' is not a folder", str(file))
    leave_word(143, "stopped by SIGTERM", str(file))
    assert json.loads(file.read_text()) == {"exit_code": 66, "reason": "data_root='x' is not a folder"}
    assert [path.name for path in tmp_path.iterdir()] == ["exit.json"]


def test_without_a_launcher_that_asks_nothing_is_written(tmp_path: Path) -> None:
    leave_word(66, "no reason", "")
    leave_word(66, "no reason", str(tmp_path / "gone" / "exit.json"))
    assert list(tmp_path.iterdir()) == []
