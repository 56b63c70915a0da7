"""Kills what a killed launcher leaves behind. Runs as a script beside the launcher; never imported.

    python -I -S guard.py LAUNCHER_PID MARK GRACE_S [FOLDER...]

A launcher cannot handle SIGKILL, and the processes that it leaves behind may ignore the SIGTERM that they
get when it dies. So this small process waits for the launcher's death, which closes its standard input, gives
the job's processes ``GRACE_S``, kills those that are left and removes the launch's temporary folders. Each
line on standard input is the id of a process of the job. A launcher that exits normally kills this process
first.

A launcher that was stopped (SIGSTOP) and has nothing left to run would stay forever. It gets SIGCONT, and
SIGKILL if that does not help.

These processes belong to the job: those named on standard input and their descendants, those with ``MARK``
in their environment, and orphans that the launcher had adopted. A process is identified by its id and start
time, so that a later process with the same id is never killed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

_LOOK_S = 5.0
_PAUSE_S = 0.2
# How long a launcher may take to exit after SIGCONT.
_CONTINUED_S = 10.0
# Not even SIGKILL ends a process that is stuck in the kernel.
_KILL_FOR_S = 30.0


def main() -> None:
    """Wait until the launcher has exited, then kill what it left."""
    launcher, mark, grace_s = int(sys.argv[1]), sys.argv[2].encode(), float(sys.argv[3])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    strangers = set(_children(launcher))
    known: dict[int, str] = {}
    job_began = False  # its process may have exited before this one learns of it
    continued_at: float | None = None
    held = b""
    while True:
        if select.select([0], [], [], _LOOK_S)[0]:
            data = os.read(0, 4096)
            if not data:
                break
            held += data
            *lines, held = held.split(b"\n")
            for line in lines:
                job_began = True
                _remember(known, {int(line)})
        _remember(known, set(_children(launcher)) - strangers)
        if not _is_stopped(launcher):
            continued_at = None
        elif continued_at is not None and time.monotonic() - continued_at >= _CONTINUED_S:
            os.kill(launcher, signal.SIGKILL)
        elif continued_at is None and (job_began or known) and not _ours(known, mark):
            continued_at = time.monotonic()
            os.kill(launcher, signal.SIGCONT)
    _end(known, mark, grace_s)
    import shutil  # imported here, because it takes as long as everything else, while the job is starting

    for folder in sys.argv[4:]:
        shutil.rmtree(folder, ignore_errors=True)


def _end(known: dict[int, str], mark: bytes, grace_s: float) -> None:
    """Wait for the grace period, then kill until nothing is left."""
    began = time.monotonic()
    while time.monotonic() - began < grace_s + _KILL_FOR_S:
        left = _ours(known, mark)
        if not left:
            return
        if time.monotonic() - began >= grace_s:
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _ours(known: dict[int, str], mark: bytes) -> set[int]:
    """Return the running processes of the job, and remember them."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in os.listdir("/proc"):  # noqa: PTH208 - only names are needed
        if entry.isdigit() and int(entry) != os.getpid():
            pid = int(entry)
            seen = _stat(pid)
            if seen is None:
                continue
            started, parents[pid] = seen
            if known.get(pid) == started or mark in _read(pid, "environ"):
                found.add(pid)
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            break
        found |= more
    _remember(known, found)
    return found


def _remember(known: dict[int, str], pids: set[int]) -> None:
    for pid in pids - {os.getpid()}:
        seen = _stat(pid)
        if seen is not None:
            known.setdefault(pid, seen[0])


def _children(pid: int) -> list[int]:
    return [int(child) for child in _read(pid, f"task/{pid}/children").split()]


def _stat(pid: int) -> tuple[str, int] | None:
    """Return the start time of a running process, in ticks since boot, and its parent.

    Does the same as process_stat.py, which cannot be imported here.
    """
    # "pid (name) state parent …": the name may contain spaces and parentheses.
    fields = _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()
    return None if not fields or fields[0] in "ZX" else (fields[19], int(fields[1]))


def _is_stopped(pid: int) -> bool:
    return _read(pid, "stat").rpartition(b")")[2].split()[:1] == [b"T"]


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 - importing pathlib takes long
            return file.read()
    except OSError:
        return b""


if __name__ == "__main__":
    main()
