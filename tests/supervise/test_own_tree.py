"""What the training leaves behind is ended, and nothing else is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from platform_launch.supervise import guarding
from tests.lab.needs import requires_pid_namespace
from tests.lab.waiting import LIMIT_S, until
from tests.supervise.lab import Supervise, Supervised, alive, python

# A daemon as a data loader or a service of a library leaves it: double fork, session of its own.
# Its parent waits until it is ready.
DAEMON = (
    "import os, signal, sys, time\n"
    "reading, writing = os.pipe()\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        {setup}\n"
    "        print('daemon', os.getpid(), 'ready', flush=True)\n"
    "        os.close(writing)\n"
    "        time.sleep({sleep})\n"
    "    os._exit(0)\n"
    "os.wait()\n"
    "os.close(writing)\n"
    "os.read(reading, 1)\n"
    "time.sleep({parent_sleep})\n"
)
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def daemon(setup: str = "pass", sleep: float = 60, parent_sleep: float = 0) -> tuple[str, ...]:
    return python(DAEMON.format(setup=setup, sleep=sleep, parent_sleep=parent_sleep))


def daemon_pid(text: str) -> int:
    found = re.search(r"daemon (\d+) ready", text)
    assert found
    return int(found[1])


def namespace(supervise: Supervise, *argv: str, **options: object) -> Supervised:
    """Run the supervisor as PID 1 of a namespace of its own."""
    before = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    return supervise(*argv, before=before, **options)


def test_a_daemon_left_behind_is_asked_to_end_and_named(supervise: Supervise) -> None:
    run = supervise(*daemon())
    outcome = run.finish()
    assert outcome["exit_code"] == 0
    assert outcome["killed"] == []
    assert not alive(daemon_pid(run.log))
    left_behind = r"\[WARN\] stopping processes left behind by the training: python\S* \(pid \d+\)"
    assert re.search(left_behind, run.log)


def test_a_helper_that_leaves_by_itself_is_no_matter_for_words(supervise: Supervise) -> None:
    run = supervise(*daemon(sleep=0.1))
    run.finish()
    assert "[WARN]" not in run.log


def test_a_deaf_grandchild_is_killed_after_the_grace_time(supervise: Supervise) -> None:
    run = supervise(*daemon(setup=DEAF, parent_sleep=60), grace_s=2)
    run.read_until(b"ready")
    pid = daemon_pid(run.log)
    run.process.terminate()
    outcome = run.finish()
    assert outcome["killed"] == [pid]
    assert outcome["exit_code"] == 143  # the training itself went by SIGTERM
    assert "[WARN] killing leftover processes of the training: python" in run.log
    assert not alive(pid)


def test_a_deep_tree_of_sessions_is_killed_to_the_last_leaf(supervise: Supervise) -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for depth in range(6):\n"
        "    if os.fork(): break\n"
        "    os.setsid()\n"
        "os.write(1, b'level %d\\n' % os.getpid())\n"
        "time.sleep(60)\n"
    )
    run = supervise(*python(code), grace_s=0.3)
    until(lambda: run.log_path.exists() and run.log.count("level") == 7)
    pids = [int(line.split()[1]) for line in run.log.splitlines()]
    run.process.terminate()
    outcome = run.finish()
    assert sorted(outcome["killed"]) == sorted(pids)
    assert not any(map(alive, pids))


def test_orphans_are_reaped_while_the_training_runs(supervise: Supervise) -> None:
    code = (
        "import os, time\n"
        "for _ in range(30):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0: time.sleep(0.05)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "print('orphaned', flush=True); time.sleep(60)\n"
    )
    run = supervise(*python(code))
    run.read_until(b"orphaned")
    children = ["ps", "--ppid", str(run.process.pid), "-o", "stat="]

    def only_the_training_and_the_guard() -> bool:
        states = subprocess.run(children, capture_output=True, text=True, check=True).stdout.split()
        return len(states) == 2 and not any(state.startswith("Z") for state in states)

    until(only_the_training_and_the_guard, "orphans stay")
    run.process.terminate()
    run.finish()


def test_a_stranger_of_the_same_name_survives(supervise: Supervise) -> None:
    stranger = subprocess.Popen(["sleep", "30"], start_new_session=True)
    try:
        run = supervise("sh", "-c", "trap '' TERM; echo ready; sleep 30 & sleep 30", grace_s=0.2)
        run.read_until(b"ready")
        run.process.terminate()
        assert run.finish()["killed"]
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait(LIMIT_S)


def test_a_child_that_was_there_before_survives(supervise: Supervise, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = f'sleep 30 & echo $! > "{note}"; exec "$@"'
    run = supervise(
        "true", before=("sh", "-c", script, "sh"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert run.finish()["exit_code"] == 0
    pid = int(note.read_text())
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_a_stranger_holding_the_pipe_does_not_hold_the_end(supervise: Supervise, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # Opens the supervisor's pipe by way of /proc, as a debugger might.
    code = (
        "import os\n"
        f"open({str(fifo)!r}, 'w').write(str(os.getpid())); print('working'); open({str(fifo)!r}).read()\n"
    )
    run = supervise(*python(code))
    with fifo.open() as file:
        pid = int(file.read())
    with Path(f"/proc/{pid}/fd/1").open("wb"):
        fifo.write_text("the pipe is held: end")
        assert run.finish()["exit_code"] == 0
    assert "working" in run.log


def test_a_killed_supervisor_takes_the_training_with_it(supervise: Supervise) -> None:
    run = supervise(*python("import os, time; print('pid', os.getpid(), 'ready'); time.sleep(60)"))
    pid = int(run.read_until(b"ready").split()[1])
    run.process.kill()
    until(lambda: not alive(pid))


def test_a_killed_supervisor_takes_along_what_ignores_every_request(supervise: Supervise) -> None:
    run = supervise(*daemon(setup=DEAF, parent_sleep=60))
    run.read_until(b"ready")
    pid = daemon_pid(run.log)
    run.process.kill()
    until(lambda: not alive(pid))


def test_a_killed_supervisor_leaves_no_temporary_folder(supervise: Supervise, tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    (folder / "answers").touch()
    run = supervise(*python("import time; print('ready'); time.sleep(600)"), temporary=[str(folder)])
    run.read_until(b"ready")
    run.process.kill()
    until(lambda: not folder.exists())


def test_a_guard_leaves_with_its_supervisor(supervise: Supervise) -> None:
    run = supervise(
        *python("import os; print('launcher', os.getppid(), 'ready', flush=True); input()"), stdin=-1
    )
    launcher = run.read_until(b"ready").split()[1].decode()
    guards = ["pgrep", "-f", f"guard.py {launcher} "]
    assert subprocess.run(guards, capture_output=True, check=False).stdout
    run.process.terminate()
    run.finish()
    assert not subprocess.run(guards, capture_output=True, check=False).stdout


@requires_pid_namespace
def test_as_pid_1_signals_codes_and_output_are_the_same(supervise: Supervise) -> None:
    run = namespace(supervise, *python("import os; print('parent', os.getppid()); raise SystemExit(3)"))
    assert run.finish()["exit_code"] == 3
    assert run.output == b"parent 1\n"


@requires_pid_namespace
def test_as_pid_1_a_term_is_forwarded_and_orphans_are_ended(supervise: Supervise) -> None:
    run = namespace(supervise, *daemon(setup=DEAF, parent_sleep=60), grace_s=2)
    run.read_until(b"ready")
    inner = subprocess.run(
        ["ps", "--ppid", str(run.process.pid), "-o", "pid="], capture_output=True, text=True, check=True
    )
    os.kill(int(inner.stdout), signal.SIGTERM)
    outcome = run.finish()
    assert outcome["exit_code"] == 143
    assert outcome["killed"] == [daemon_pid(run.log)]


@requires_pid_namespace
def test_as_pid_1_no_zombies_gather(supervise: Supervise) -> None:
    code = (
        "import os, subprocess, time\n"
        "for _ in range(20):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0: time.sleep(0.05)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "states = 'not asked'\n"
        "while len(states.split()) > 3:\n"  # the supervisor, this process and ps
        "    states = subprocess.run(['ps', '-e', '-o', 'stat='], capture_output=True, text=True).stdout\n"
        "print(states.count('Z'))\n"
    )
    run = namespace(supervise, *python(code))
    run.finish()
    assert run.output == b"0\n"


def test_a_stopped_supervisor_goes_on_although_its_command_ended_before_the_guard_had_started() -> None:
    launcher = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, time; os.fork() or os._exit(0); print('began', flush=True); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        (child,) = psutil.Process(launcher.pid).children()
        until(lambda: child.status() == psutil.STATUS_ZOMBIE)
        launcher.send_signal(signal.SIGSTOP)
        until(lambda: psutil.Process(launcher.pid).status() == psutil.STATUS_STOPPED)
        argv = [sys.executable, "-I", "-S", str(Path(guarding.__file__).with_name("guard.py"))]
        guard = subprocess.Popen([*argv, str(launcher.pid), "MARK=none", "0"], stdin=subprocess.PIPE)
        with guard:
            assert guard.stdin is not None
            guard.stdin.write(f"{child.pid}\n".encode())
            guard.stdin.flush()
            until(lambda: psutil.Process(launcher.pid).status() != psutil.STATUS_STOPPED)
        launcher.communicate(b"\n")


def test_a_supervisor_that_was_stopped_goes_on_once_its_command_has_ended(supervise: Supervise) -> None:
    """Nobody else would continue it, and its container would stay for ever."""
    run = supervise(*python("print('ready', flush=True); input()"), stdin=subprocess.PIPE)
    run.read_until(b"ready")
    run.process.send_signal(signal.SIGSTOP)
    assert run.process.stdin is not None
    run.process.stdin.write(b"\n")
    run.process.stdin.flush()
    assert run.finish()["exit_code"] == 0
