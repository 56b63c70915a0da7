"""Stacks of a process that does not answer itself, from py-spy if that is installed."""

from __future__ import annotations

import json
import shutil
import subprocess

from platform_launch.observe.stacks import PythonFrame, ThreadStack
from platform_launch.observe.workers import NoAnswerError

_LIMIT_S = 5.0


def ask_py_spy(pid: int) -> tuple[ThreadStack, ...]:
    """Query py-spy, which reads another process's memory. Raises NoAnswerError."""
    program = shutil.which("py-spy")
    if program is None:
        raise NoAnswerError("py-spy is not installed (the extra 'observe' brings it)")
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--json", "--pid", str(pid)],
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
        dump = json.loads(done.stdout or b"null")
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise NoAnswerError(f"py-spy did not answer: {error}") from error
    if not isinstance(dump, list):
        why = done.stderr.decode(errors="replace").strip().splitlines()
        raise NoAnswerError(f"py-spy cannot read it: {why[0] if why else 'no reason given'}")
    threads = []
    for thread in dump:
        frames = tuple(
            PythonFrame(str(f.get("filename")), int(f.get("line") or 0), str(f.get("name")))
            for f in thread.get("frames", [])
        )
        if frames:
            name = str(thread.get("thread_name") or "")
            threads.append(
                ThreadStack(thread.get("os_thread_id") == pid or name == "MainThread", frames, name)
            )
    return tuple(sorted(threads, key=lambda thread: not thread.main))
