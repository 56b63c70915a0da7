"""A supervisor alone: what it writes down, when it ends its training, and that only one ever holds a run."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from platform_launch import helper
from platform_launch.environment import Environment
from platform_launch.hardware import running
from platform_launch.procguard.agent import records
from platform_launch.procguard.agent import supervisor as supervisor_module
from platform_launch.procguard.agent.reconcile import Stage
from platform_launch.procguard.agent.records import MARKER, AgentLock, RunLaunch, is_free
from platform_launch.procguard.agent.state import RunFolder, StateFolder
from platform_launch.procguard.agent.worker import AgentLimits, Leftovers, Worker
from platform_launch.procguard.api.english import english
from platform_launch.procguard.api.wire import OrderAction, WorkerOrder, WorkerState
from platform_launch.sentences import Sentence, quoted, sentence
from tests.lab.disk import requires_mount
from tests.lab.waiting import LIMIT_S, until

BOOT = running.boot_id()
Keep = Callable[..., "subprocess.Popen[bytes]"]


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-u", "-c", code)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "7"
    path.mkdir()
    return path


@pytest.fixture
def keep(folder: Path, tmp_path: Path) -> Iterator[Keep]:
    """Start a supervisor as an agent does; the test itself is the living agent."""
    lock = AgentLock(tmp_path / "agent.lock")
    assert lock.acquire()
    mark = f"{os.getpid()}:0:7"
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str, hold: bool = True, **more: Any) -> subprocess.Popen[bytes]:
        values: dict[str, Any] = {
            "environment": {**os.environ, MARKER: mark},
            "directory": str(tmp_path),
            "grace_s": 20.0,
            "lock": str(tmp_path / "agent.lock"),
            "orphan_after_s": 60.0,
        }
        RunLaunch(command=command, **{**values, **more}).write(folder)
        records.write(folder / records.AGENT, {"starting": records.now()})
        if not hold:
            lock.release()
        started.append(subprocess.Popen(helper.command("procguard-supervisor", str(folder))))
        return started[-1]

    yield start
    lock.release()
    for process in started:
        process.kill()
        process.wait(LIMIT_S)
    left = Leftovers(str(os.getpid()), 0)
    left.scan(())
    for pid in left.pids:
        os.kill(pid, signal.SIGKILL)


def ended(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / records.SUPERVISOR).read_text())
    found: dict[str, Any] = record["ended"]
    return found


def order_stop(folder: Path, reason: Sentence) -> None:
    records.update(folder / records.AGENT, stop={"reason": reason.document(), "grace_s": 30.0})


def log(folder: Path) -> str:
    path = folder / records.LOG
    return path.read_text() if path.exists() else ""


def test_what_a_failed_training_leaves_behind(keep: Keep, folder: Path) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.stderr.flush(); {}['lr']"
    keep(*python(code)).wait(LIMIT_S)
    run = RunFolder(folder).read_run(BOOT)
    assert (run.stage, run.exit_code, run.stop_requested) == (Stage.EXITED, 1, False)
    assert "KeyError" in run.verdict
    assert run.why is not None
    assert (run.why.lines("en"), run.why.lines("zh")[0][:3]) == (run.verdict.splitlines(), "原因：")
    assert log(folder).startswith("out\nerr\n")
    assert run.log_bytes == len(log(folder))
    assert run.ended_s_ago is not None
    assert run.ended_s_ago < LIMIT_S
    for path in folder.iterdir():
        if path.name != records.LOG:
            assert path.stat().st_mode & 0o077 == 0, path


def test_death_by_a_signal_is_named(keep: Keep, folder: Path) -> None:
    keep(*python("import os; os.kill(os.getpid(), 9)")).wait(LIMIT_S)
    assert ended(folder)["exit_code"] == 137
    assert records.reason_of(ended(folder)) == sentence("killed", signal="SIGKILL")


def test_a_stop_is_told_once_and_its_grace_time_kept(keep: Keep, folder: Path) -> None:
    polite = (
        "import signal, sys, time\n"
        "def on_term(*_):\n    print('heard'); time.sleep(0.5); print('saved'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, on_term); print('begun'); time.sleep(300)"
    )
    process = keep(*python(polite))
    until(lambda: "begun" in log(folder), "the training")
    assert RunFolder(folder).read_run(BOOT).stage is Stage.RUNNING
    order_stop(folder, quoted("by order"))
    process.send_signal(signal.SIGTERM)  # the node goes down at the same time
    until(lambda: RunFolder(folder).read_run(BOOT).ending, "the record of the stop")
    process.wait(LIMIT_S)
    assert log(folder).count("heard") == 1
    assert "saved" in log(folder)
    assert ended(folder)["exit_code"] == 0


def test_who_asked_is_written_down(keep: Keep, folder: Path) -> None:
    process = keep(*python("import time; print('begun'); time.sleep(300)"))
    until(lambda: "begun" in log(folder), "the training")
    # Its words are those of another reason: who asked is told by what was handed over, never by its words.
    order = quoted(english(supervisor_module.GONE))
    order_stop(folder, order)
    process.wait(LIMIT_S)
    assert (ended(folder)["stop_requested"], records.reason_of(ended(folder))) == (True, order)


def test_a_signal_to_the_supervisor_is_no_order(keep: Keep, folder: Path) -> None:
    process = keep(*python("import time; print('begun'); time.sleep(300)"))
    until(lambda: "begun" in log(folder), "the training")
    process.send_signal(signal.SIGTERM)
    process.wait(LIMIT_S)
    assert (ended(folder)["stop_requested"], records.reason_of(ended(folder))) == (False, quoted("SIGTERM"))


def test_a_wish_that_cannot_be_read_is_none(keep: Keep, folder: Path) -> None:
    process = keep("sh", "-c", "echo begun; sleep 1; exit 5")
    until(lambda: "begun" in log(folder), "the training")
    (folder / records.AGENT).unlink()
    (folder / records.AGENT).mkdir()
    assert process.wait(LIMIT_S) == 0
    assert (ended(folder)["exit_code"], ended(folder)["stop_requested"]) == (5, False)


def test_without_an_agent_the_training_ends(keep: Keep, folder: Path) -> None:
    keep(*python("import time; time.sleep(300)"), hold=False, orphan_after_s=0.5).wait(LIMIT_S)
    assert not ended(folder)["stop_requested"]
    assert records.reason_of(ended(folder)) == supervisor_module.GONE


def test_a_run_that_was_given_up_never_starts(keep: Keep, folder: Path, tmp_path: Path) -> None:
    assert RunFolder(folder).give_up(sentence("lost-start-failed", problem="too late"))
    keep(*python("open('started', 'w')")).wait(LIMIT_S)
    assert not (tmp_path / "started").exists()
    run = RunFolder(folder).read_run(BOOT)
    assert (run.stage, run.reason) == (Stage.LOST, sentence("lost-start-failed", problem="too late"))


def test_of_two_supervisors_one_starts(keep: Keep, folder: Path, tmp_path: Path) -> None:
    code = "import time; open('started', 'a').write('x'); time.sleep(1)"
    first, second = keep(*python(code)), keep(*python(code))
    first.wait(LIMIT_S)
    second.wait(LIMIT_S)
    assert (tmp_path / "started").read_text() == "x"
    assert not RunFolder(folder).give_up(sentence("lost"))


def test_an_early_exit_shows_while_others_of_it_still_end(keep: Keep, folder: Path, tmp_path: Path) -> None:
    child = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up')\n"
        "while not os.path.exists('go'): time.sleep(0.05)"
    )
    code = (
        "import subprocess, sys\n"
        f"p = subprocess.Popen([sys.executable, '-uc', {child!r}], stdout=subprocess.PIPE)\n"
        "p.stdout.readline(); sys.exit(5)"
    )
    process = keep(*python(code))
    until(lambda: "exited" in (records.read(folder / records.SUPERVISOR) or {}), "the exit")
    run = RunFolder(folder).read_run(BOOT)
    assert (run.stage, run.ending, run.exit_code) == (Stage.RUNNING, True, 5)
    (tmp_path / "go").touch()
    process.wait(LIMIT_S)
    assert RunFolder(folder).read_run(BOOT).exit_code == 5


@requires_mount
def test_a_full_disk_neither_stops_the_training_nor_hides_its_end(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)], check=False)
    assert mounted.returncode == 0
    try:
        folder = disk / "7"
        folder.mkdir()
        code = "for n in range(20000): print('x' * 100)\nopen('reached', 'w'); raise SystemExit(3)"
        RunLaunch(python(code), dict(os.environ), str(tmp_path), 5.0, str(disk / "lock"), 60.0).write(folder)
        records.write(folder / records.AGENT, {"starting": records.now()})
        subprocess.run(helper.command("procguard-supervisor", str(folder)), check=False, timeout=LIMIT_S)
        assert (tmp_path / "reached").exists()
        run = RunFolder(folder).read_run(BOOT)
        assert (run.stage, run.exit_code) == (Stage.EXITED, 3)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_after_a_reboot_nothing_is_ready_and_what_ran_is_lost(folder: Path) -> None:
    records.write(folder / records.AGENT, {"ready": "another"})
    assert RunFolder(folder).read_run(BOOT).stage is Stage.STALE
    assert RunFolder(folder).read_run("another").stage is Stage.READY
    records.update(folder / records.AGENT, starting={"boot": "another", "at": 5.0})
    assert RunFolder(folder).read_run(BOOT).stage is Stage.LOST
    me = running.find(os.getpid())
    assert me is not None
    its_number = {"pid": me.pid, "started": me.started - 1}  # given again
    records.write(folder / records.SUPERVISOR, its_number)
    assert RunFolder(folder).read_run(BOOT).stage is Stage.LOST
    end = {"boot": "another", "at": 5.0, "exit_code": 0, "stop_requested": False}
    records.update(folder / records.SUPERVISOR, ended=end)
    run = RunFolder(folder).read_run(BOOT)
    assert run.stage is Stage.EXITED
    assert run.ended_s_ago is not None
    assert run.ended_s_ago > 0


def test_a_supervisor_is_waited_for_before_its_run_is_lost(folder: Path) -> None:
    records.write(folder / records.AGENT, {"starting": records.now()})
    assert RunFolder(folder).read_run(BOOT).stage is Stage.STARTING
    assert not (folder / records.SUPERVISOR).exists()
    records.write(folder / records.AGENT, {"starting": {"boot": BOOT, "at": records.clock_s() - 61}})
    assert RunFolder(folder).read_run(BOOT).stage is Stage.LOST
    assert not records.claim(folder / records.SUPERVISOR, {"pid": 1})  # one that comes now comes too late


def test_records_that_are_no_records_are_lost_runs_not_crashes(folder: Path) -> None:
    (folder / records.AGENT).write_text("")
    assert RunFolder(folder).read_run(BOOT).stage is Stage.LOST
    (folder / records.SUPERVISOR).write_text("[1")
    assert RunFolder(folder).read_run(BOOT).stage is Stage.LOST


@contextmanager
def no_file_opens() -> Iterator[None]:
    """Let nothing be opened, as on a disk that does not answer; the superuser has no other way to see it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_what_cannot_be_seen_is_not_gone(tmp_path: Path) -> None:
    """A disk that does not answer for a moment: the run goes on, and nothing is said that is not known."""
    state = StateFolder(tmp_path / "state")
    state.open()
    run = state.make_run(0, 7).path
    me = running.find(os.getpid())
    assert me
    records.write(run / records.AGENT, {"starting": records.now()})
    records.claim(run / records.SUPERVISOR, {"pid": me.pid, "started": me.started})
    said: list[str] = []
    limits = AgentLimits(directory=tmp_path)
    worker = Worker(0, state, Environment({}), limits, lambda _level, text: said.append(text))
    worker.order = WorkerOrder(action=OrderAction.RUN, generation=7, command=("true",))
    for observed in (False, True):
        assert worker.observed is observed
        with no_file_opens():
            worker.advance()
            assert worker.logs() == []
            assert not observed or worker.report(()).state is WorkerState.RUNNING
        assert worker.observed is observed
        worker.advance()
        report = worker.report(())
        assert (report.state, report.generation) == (WorkerState.RUNNING, 7)
    assert [line for line in said if "cannot read the state of runs" in line]
    state.close()


def test_the_lock_is_seen_without_being_touched(tmp_path: Path) -> None:
    path = tmp_path / "agent.lock"
    assert is_free(path)
    first, second = AgentLock(path), AgentLock(path)
    assert first.acquire()
    assert not is_free(path)
    assert not second.acquire()
    first.release()
    assert is_free(path)
    assert second.acquire()
    second.release()


def test_the_folder_keeps_its_identity_and_the_last_runs(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "a" / "b")
    state.open()
    name = state.instance()
    state.save_credential("https://one", "as this", "secret")
    for generation in range(1, 12):
        state.make_run(0, generation)
    state.close()
    again = StateFolder(tmp_path / "a" / "b")
    again.open()
    assert again.instance() == name
    assert again.credential("https://one", "as this") == "secret"
    assert again.credential("https://one", "as that") is None
    assert again.credential("https://two", "as this") is None
    assert again.numbers() == [0]
    assert [run.generation for run in again.runs(0)] == [7, 8, 9, 10, 11]
    assert again.path.stat().st_mode & 0o777 == 0o700
    assert (again.path / "agent.json").stat().st_mode & 0o777 == 0o600
    again.close()


def test_the_log_begins_with_whose_it_is(keep: Keep, folder: Path) -> None:
    place = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "gn6"}
    keep("true", environment={**os.environ, **place})
    until(lambda: "ended" in (records.read(folder / records.SUPERVISOR) or {}), "the end")
    assert log(folder) == "[Rank 1] World Size: 4, Local Rank: 0, Master Addr: gn6\n"
    assert not (folder / records.LAUNCH).exists(), "the environment does not stay on disk"
