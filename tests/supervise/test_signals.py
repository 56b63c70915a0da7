"""Signals reach the training, and a training that does not listen ends all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from tests.lab.waiting import LIMIT_S, until
from tests.supervise.lab import ROOT, Supervise, python

# They sleep: signal.pause() may wait although a signal came just before it.
REPORT = (
    "import signal, sys, time\n"
    "def report(number, _):\n"
    "    print('got', signal.Signals(number).name)\n"
    "    sys.exit(10 + number)\n"
    "for name in ('TERM', 'INT', 'HUP', 'QUIT', 'USR1', 'USR2'):\n"
    "    signal.signal(getattr(signal, 'SIG' + name), report)\n"
    "print('ready')\n"
    "while True: time.sleep(0.05)\n"
)
DEAF = (
    "import signal, sys, time\n"
    "for name in ('TERM', 'INT'): signal.signal(getattr(signal, 'SIG' + name), signal.SIG_IGN)\n"
    "print('ready')\n"
    "while True: time.sleep(0.05)\n"
)
FLOOD = "import os\nwhile True: os.write(1, b'line of output\\n' * 1000)\n"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_a_signal_reaches_the_training_and_its_code_comes_back(supervise: Supervise, name: str) -> None:
    number = signal.Signals[name]
    run = supervise(*python(REPORT))
    run.read_until(b"ready")
    run.process.send_signal(number)
    assert run.finish()["exit_code"] == 10 + number
    assert f"got {name}" in run.log


def test_the_generic_code_after_a_signal_becomes_the_signals(supervise: Supervise) -> None:
    """Python ends with a traceback and 1 on Ctrl-C, torchrun on every signal."""
    run = supervise(*python("import time\nprint('ready')\ntime.sleep(60)"))
    run.read_until(b"ready")
    run.process.send_signal(signal.SIGINT)
    assert run.finish()["exit_code"] == 128 + signal.SIGINT
    assert "KeyboardInterrupt" in run.log


@pytest.mark.parametrize(
    ("handled", "code", "stopped_by"),
    [("SIGTERM,SIGUSR1", 128 + signal.SIGUSR1, "SIGUSR1"), ("SIGTERM", 1, None)],
)
def test_a_warning_that_torchrun_ends_on_is_no_failure(
    supervise: Supervise, monkeypatch: pytest.MonkeyPatch, handled: str, code: int, stopped_by: str | None
) -> None:
    """torchrun ends on every signal it handles, with 1; another command's 1 after USR1 is its own failure."""
    monkeypatch.setenv("PET_SIGNALS_TO_HANDLE", handled)
    run = supervise(*python(REPORT.replace("sys.exit(10 + number)", "sys.exit(1)")))
    run.read_until(b"ready")
    run.process.send_signal(signal.SIGUSR1)
    outcome = run.finish()
    assert (outcome["exit_code"], outcome["stopped_by"]) == (code, stopped_by)


def test_sigterm_counts_also_where_a_script_around_it_ignores_it(supervise: Supervise) -> None:
    run = supervise(*python(REPORT), before=("sh", "-c", 'trap \'\' TERM; exec "$0" "$@"'))
    run.read_until(b"ready")
    run.process.terminate()
    assert run.finish()["exit_code"] == 10 + signal.SIGTERM


def test_a_signal_reaches_the_whole_group(supervise: Supervise) -> None:
    inner = "trap 'echo inner; exit 0' USR1; echo ready; while :; do sleep 0.05; done"
    run = supervise("sh", "-c", 'trap "wait; exit 4" USR1; sh -c "$0" & wait; exit 5', inner)
    run.read_until(b"ready")
    run.process.send_signal(signal.SIGUSR1)
    assert run.finish()["exit_code"] == 4
    assert "inner" in run.log


def test_usr1_does_not_start_the_grace_time(supervise: Supervise) -> None:
    code = (
        "import signal, time\n"
        "warned = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: warned.append(1))\n"
        "print('ready')\n"
        "while not warned: time.sleep(0.01)\n"
        "time.sleep(1)\n"
    )
    run = supervise(*python(code), grace_s=0.1)
    run.read_until(b"ready")
    run.process.send_signal(signal.SIGUSR1)
    outcome = run.finish()
    assert outcome["exit_code"] == 0
    assert outcome["stopped_by"] is None


def test_a_deaf_training_is_killed_after_the_grace_time(supervise: Supervise) -> None:
    run = supervise(*python(DEAF), grace_s=0.5)
    run.read_until(b"ready")
    began = time.monotonic()
    run.process.terminate()
    outcome = run.finish()
    assert time.monotonic() - began >= 0.5
    assert outcome["exit_code"] == 137
    assert (outcome["stopped_by"], outcome["stop_sentence"]) == ("SIGTERM", None)
    assert len(outcome["killed"]) == 1
    assert "[INFO] SIGTERM: stopping the training, SIGKILL in 0.5 s" in run.log
    assert "[WARN] killing processes of the training that did not stop within 0.5 s: python" in run.log


def test_a_second_ctrl_c_kills_at_once(supervise: Supervise) -> None:
    run = supervise(*python(DEAF), grace_s=60)
    run.read_until(b"ready")
    run.process.send_signal(signal.SIGINT)
    run.read_until(b"Ctrl-C again kills at once")
    time.sleep(0.6)
    run.process.send_signal(signal.SIGINT)
    assert run.finish()["exit_code"] == 137


def test_one_ctrl_c_delivered_twice_is_one(supervise: Supervise) -> None:
    """By a clock that stands still: on a busy machine any two signals may come far apart."""
    code = (
        "import signal, sys, time\n"
        "got = []\n"
        "def count(*_):\n"
        "    got.append(1)\n"
        "    print('got', len(got))\n"
        "    if len(got) == 2: sys.exit(9)\n"
        "signal.signal(signal.SIGINT, count)\n"
        "print('ready')\n"
        "while True: time.sleep(0.05)\n"
    )
    run = supervise(*python(code), clock_stands_still=True)
    for said in (b"ready", b"got 1"):
        run.read_until(said)
        run.process.send_signal(signal.SIGINT)
    outcome = run.finish()
    assert (outcome["exit_code"], outcome["killed"]) == (9, [])
    assert "got 2" in run.log


def test_signals_are_heard_while_output_floods(supervise: Supervise) -> None:
    run = supervise(*python(FLOOD), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: run.log_path.exists() and run.log_path.stat().st_size > 1_000_000)
    run.process.terminate()
    assert run.finish()["exit_code"] == 143


def test_signals_are_heard_while_nobody_reads(supervise: Supervise) -> None:
    run = supervise(*python(FLOOD), grace_s=2)  # for the output too, which nobody takes
    until(lambda: run.log_path.exists() and run.log_path.stat().st_size > 0)
    time.sleep(0.2)  # every pipe on the way is full now
    run.process.terminate()
    assert run.process.wait(LIMIT_S) == 143
    assert "SIGTERM: stopping the training" in run.log


def test_a_reader_that_is_late_still_gets_everything(supervise: Supervise) -> None:
    run = supervise(*python("import os; os.write(1, b'z' * 900_000)"))
    until(lambda: run.log_path.exists() and run.log_path.stat().st_size >= 131072)
    time.sleep(0.3)  # the training is over, its output waits
    run.finish()
    assert run.output.count(b"z") == 900_000


def test_a_shared_descriptor_is_not_made_nonblocking(supervise: Supervise) -> None:
    reading, writing = os.pipe()
    run = supervise("sleep", "60", stdout=writing, stderr=writing)
    until(run.log_path.exists)
    assert os.get_blocking(writing)
    run.process.terminate()
    run.finish()
    os.close(reading)
    os.close(writing)


def test_another_thread_can_ask_for_the_end_and_its_reason_is_kept(supervise: Supervise) -> None:
    run = supervise(*python(REPORT), stop_once_logged="ready")
    outcome = run.finish()
    assert outcome["exit_code"] == 10 + signal.SIGTERM
    assert (outcome["stopped_by"], outcome["stop_sentence"]) == ("node 3 left", "node-left")
    assert "[INFO] node 3 left: stopping the training" in run.log


def test_a_training_that_has_finished_was_not_stopped(supervise: Supervise) -> None:
    outcome = supervise("true", stop_once_ended=True).finish()
    assert (outcome["exit_code"], outcome["stopped_by"]) == (0, None)


def test_what_came_before_the_training_is_not_lost() -> None:
    code = (
        "import os, signal, sys\n"
        "from platform_launch.supervise import Command, Supervisor\n"
        "from platform_launch.supervise.signals import Interrupted, SignalInbox\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "inbox = SignalInbox().open()\n"
        "training = Command(('sleep', '600'), dict(os.environ))\n"
        "print(Supervisor(training, inbox=inbox).run().stopped_by)\n"
        "try:\n"
        "    with inbox.raising():\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        signal.pause()\n"
        "except Interrupted as interrupted:\n"
        "    print(interrupted.number.name, 'while preparing')\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.exit(5)\n"
    )
    done = subprocess.run(
        python(code), cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 5, done.stderr
    assert done.stdout.splitlines()[-2:] == ["SIGTERM", "SIGTERM while preparing"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_the_last_moments_of_the_interpreter_do_not_replace_the_exit_code(name: str) -> None:
    """Python gives its signals back before it takes its modules down."""
    code = (
        "import os, signal, sys\n"
        "from platform_launch.supervise.signals import SignalInbox\n"
        "class Last:\n"
        f"    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.{name}): kill(pid, number)\n"
        "last = Last()\n"
        "inbox = SignalInbox().open()\n"
        "sys.exit(3)\n"
    )
    done = subprocess.run([*python(code)], cwd=ROOT, timeout=LIMIT_S, check=False)
    assert done.returncode == 3
