"""What a piece of Python does to the machine, counted: the same on an idle machine and on a busy one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.lab.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]

_PROGRAM = """
import json, sys
opened, started, counting = [], [], False
def hear(event, arguments):
    if not counting:
        return
    if event == "open":
        opened.append(str(arguments[0]))
    elif event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"):
        started.append(str(arguments[:2]))
place = {}
exec(sys.argv[1], place)
sys.addaudithook(hear)
counting = True
exec(sys.argv[2], place)
counting = False
print("\\n" + json.dumps([opened, started, sorted(sys.modules)]))
"""


@dataclass(frozen=True)
class Effects:
    """Files that were opened, processes that were started, modules that are imported at the end."""

    opened: tuple[str, ...]
    started: tuple[str, ...]
    modules: frozenset[str]

    @property
    def read(self) -> list[str]:
        """The files opened but for Python's own: source and bytecode."""
        return [name for name in self.opened if not name.endswith((".py", ".pyc"))]


def effects_of(work: str, *, after: str = "", env: Mapping[str, str] | None = None) -> Effects:
    """Run Python code in a child process and count what ``work`` does, but not what it comes after."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, after, work],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    opened, started, modules = json.loads(done.stdout.splitlines()[-1])
    return Effects(tuple(opened), tuple(started), frozenset(modules))
