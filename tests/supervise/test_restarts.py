"""An agent restarts its training for weeks: nothing may add up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.lab.waiting import LIMIT_S
from tests.supervise.lab import ROOT


def test_ten_runs_leave_no_descriptor_thread_handler_or_child_behind(tmp_path: Path) -> None:
    code = (
        "import json, os, signal, sys, threading\n"
        "from pathlib import Path\n"
        "from platform_launch.supervise import Command, Supervisor\n"
        "def state():\n"
        "    handlers = [str(signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)]\n"
        "    return [sorted(os.listdir('/proc/self/fd')), threading.active_count(), handlers]\n"
        "command = Command(('sh', '-c', 'echo hello; exit 3'), dict(os.environ))\n"
        "before = state()\n"
        "logs = [Path(sys.argv[1], f'{i}.log') for i in range(10)]\n"
        "codes = {Supervisor(command, log_path=log).run().exit_code for log in logs}\n"
        "missing = {Supervisor(Command(('/nowhere',), {})).run().exit_code for _ in range(3)}\n"
        "try: os.waitpid(-1, os.WNOHANG); childless = False\n"
        "except ChildProcessError: childless = True\n"
        "print(json.dumps([before == state(), sorted(codes), sorted(missing), childless]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        timeout=LIMIT_S,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert json.loads(lines[-1]) == [True, [3], [127], True]
    assert lines.count(b"hello") == 10


def test_a_stop_before_the_run_ends_it_at_once() -> None:
    code = (
        "import os\n"
        "from platform_launch.supervise import Command, Supervisor\n"
        "supervisor = Supervisor(Command(('sleep', '30'), dict(os.environ)))\n"
        "supervisor.stop('too late')\n"
        "outcome = supervisor.run()\n"
        "print(outcome.exit_code, outcome.stopped_by)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == b"143 too late"


def test_the_supervisor_imports_nothing_heavy() -> None:
    code = "import sys, platform_launch.supervise; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    heavy = {"torch", "accelerate", "deepspeed", "numpy", "psutil", "rich", "asyncio", "subprocess"}
    assert not heavy & set(done.stdout.split())
