"""The lock of the output folder: a run that is alive keeps it, a dead one does not."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from taehv_trainer.ending import write_exit_file
from taehv_trainer.errors import TrainingError
from taehv_trainer.lock import OutputLock
from tests.lab.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
HOLD = (
    "import sys, time; from pathlib import Path; from taehv_trainer.lock import OutputLock;"
    "lock = OutputLock(Path(sys.argv[1]), 'other'); lock.acquire(); print('held', flush=True);"
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


def take_and_release(folder: Path) -> str:
    lock = OutputLock(folder, "ours", lease_s=LIMIT_S)
    warning = lock.acquire()
    lock.release()
    return warning


def test_a_second_run_is_refused_and_told_who_writes_there(tmp_path: Path) -> None:
    with held_by_another(tmp_path) as holder:
        with pytest.raises(TrainingError, match=f"job other, host .*, pid {holder.pid}") as refusal:
            OutputLock(tmp_path, "ours").acquire()
        assert "--output-dir" in refusal.value.hint


def test_what_a_killed_run_left_is_no_obstacle(tmp_path: Path) -> None:
    with held_by_another(tmp_path) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    lock = OutputLock(tmp_path, "ours")
    assert lock.acquire() == ""
    assert f"job ours, host {socket.gethostname()}, pid {os.getpid()}" in (tmp_path / ".lock").read_text()
    lock.release()
    assert (tmp_path / ".lock").read_text() == ""


def test_a_forked_worker_does_not_hold_the_lock_of_a_run_that_is_gone(tmp_path: Path) -> None:
    forking = HOLD.replace("time.sleep(600)", "import os; os.fork() or (time.sleep(600), os._exit(0))")
    environment = {"PYTHONPATH": str(ROOT / "examples" / "taehv")}
    command = [sys.executable, "-c", forking, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True) as run:
        assert run.wait(timeout=LIMIT_S) == 0  # the run itself; its worker goes on
        try:
            assert take_and_release(tmp_path) == ""
        finally:
            os.killpg(run.pid, signal.SIGKILL)


def test_the_lock_of_a_host_that_crashed_is_waited_for_as_long_as_a_server_keeps_it(tmp_path: Path) -> None:
    with held_by_another(tmp_path) as holder:
        (tmp_path / ".lock").write_text("job other, host elsewhere, pid 7\n")
        with pytest.raises(TrainingError, match="host elsewhere"):
            OutputLock(tmp_path, "ours", lease_s=0.1).acquire()
        released = threading.Timer(0.1, holder.kill)
        released.start()
        assert take_and_release(tmp_path) == ""
        released.join()


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    lock = OutputLock(tmp_path, "ours")
    assert "is on a file system without locks" in lock.acquire()
    lock.release()


def test_of_many_that_come_at_once_one_gets_it(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(ROOT / "examples" / "taehv")}
    command = [sys.executable, "-c", HOLD.replace("time.sleep(600)", "sys.stdin.read()"), str(tmp_path)]
    runs = [
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
    said = [run.stdout.readline() if run.stdout else "" for run in runs]
    for run in runs:
        run.communicate()
    assert sorted(said) == [""] * 5 + ["held\n"]


def test_the_first_word_on_how_it_ended_stays(tmp_path: Path) -> None:
    file = tmp_path / "exit.json"
    write_exit_file(66, "data_root='x' is not a folder", str(file))
    write_exit_file(143, "stopped by SIGTERM", str(file))
    assert json.loads(file.read_text()) == {"exit_code": 66, "reason": "data_root='x' is not a folder"}
    assert [path.name for path in tmp_path.iterdir()] == ["exit.json"]


def test_without_a_launcher_that_asks_nothing_is_written(tmp_path: Path) -> None:
    write_exit_file(66, "no reason", "")
    write_exit_file(66, "no reason", str(tmp_path / "gone" / "exit.json"))
    assert list(tmp_path.iterdir()) == []
