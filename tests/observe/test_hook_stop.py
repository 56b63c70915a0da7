"""The hook's part in a stop: a rank hears a request once, and its helpers are in groups of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import platform_launch.observe
from tests.lab.waiting import LIMIT_S

HOOK = Path(platform_launch.observe.__file__).parent / "hook"


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a rank."""
    script = folder / "script.py"
    script.write_text(code)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PLATFORM_LAUNCH_")}
    hooked = {"PLATFORM_LAUNCH_OBSERVE": str(folder), "PYTHONPATH": str(HOOK), "LOCAL_RANK": "0"}
    return subprocess.run(
        [sys.executable, str(script)],
        env={**kept, **hooked},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        start_new_session=True,
    )


ASKED_TWICE = """
import os, signal, sys
asked = []
def handle(number, frame):
    asked.append(number)
    {then}
assert signal.signal(signal.SIGTERM, handle) == signal.SIG_DFL
assert signal.getsignal(signal.SIGTERM) is handle
for _ in range(2): os.kill(os.getpid(), signal.SIGTERM)
print(len(asked))
"""


@pytest.mark.parametrize("then", ["pass", "signal.signal(signal.SIGTERM, signal.SIG_DFL)"])
def test_a_rank_hears_a_request_once(tmp_path: Path, then: str) -> None:
    done = run(tmp_path, ASKED_TWICE.format(then=then))
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


def test_a_later_request_is_another_one(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "import os, signal, sys\n"
        "hook = sys.modules['_platform_launch_stop']\n"
        "hook._SAME_S = 0\n"
        "asked = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))\n"
        "for _ in range(2): os.kill(os.getpid(), signal.SIGUSR1)\n"
        "print(len(asked))\n",
    )
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_a_default_that_was_restored_ends_the_rank_later(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "import os, signal, sys\n"
        "hook = sys.modules['_platform_launch_stop']\n"
        "signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "hook._SAME_S = 0\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('still here')\n",
    )
    assert (done.stdout, done.returncode) == ("", -signal.SIGTERM)


GROUPS = """
import os, subprocess, sys
from multiprocessing import get_context
def group(queue): queue.put((os.getpid(), os.getpgid(0)))
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=group, args=(queue,))
        process.start()
        pid, own = queue.get()
        process.join()
        print(method, pid == own)
    print("program", os.getpgid(0) == int(subprocess.check_output(["sh", "-c", "ps -o pgid= $$"])))
"""


def test_helpers_of_a_rank_lead_groups_of_their_own(tmp_path: Path) -> None:
    done = run(tmp_path, GROUPS)
    expected = ["fork True", "spawn True", "forkserver True", "program True"]
    assert done.stdout.splitlines() == expected, done.stderr


def test_a_helper_takes_sigterm_from_its_parent_only(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "import os, subprocess, sys, time\n"
        "from multiprocessing import get_context\n"
        "def work(queue):\n"
        "    queue.put(1)\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    context = get_context('fork')\n"
        "    queue = context.SimpleQueue()\n"
        "    process = context.Process(target=work, args=(queue,))\n"
        "    process.start()\n"
        "    queue.get()\n"
        "    subprocess.run(['sh', '-c', f'kill -TERM {process.pid}'], check=True)\n"
        "    process.join(0.5)\n"
        "    print(process.exitcode)\n"
        "    process.terminate()\n"
        "    process.join()\n"
        "    print(process.exitcode)\n",
    )
    assert (done.stdout, done.stderr) == ("None\n-15\n", "")


def test_a_program_that_a_helper_starts_can_be_stopped_by_anybody(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "import signal, subprocess\n"
        "from multiprocessing import get_context\n"
        "def work():\n"
        "    program = subprocess.Popen(['sleep', '600'])\n"
        "    program.terminate()\n"
        "    print(program.wait(), flush=True)\n"
        "if __name__ == '__main__':\n"
        "    process = get_context('fork').Process(target=work)\n"
        "    process.start()\n"
        "    process.join()\n",
    )
    assert (done.stdout, done.stderr) == ("-15\n", "")
