"""The processes on this machine, and the files and sockets that they hold open."""

from __future__ import annotations

import os
import resource
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from platform_launch.hardware.kernel_files import text
from platform_launch.process_stat import read_stat
from platform_launch.values import dataclass

PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """A process. ``started`` is in clock ticks since boot: with ``pid`` it identifies a process for ever.

    ``command`` is the beginning of its command line, or its name in brackets.
    """

    pid: int
    parent: int
    session: int
    started: int
    command: str


def running(proc_root: Path = PROC) -> Iterator[Process]:
    """Yield every process that has not ended."""
    for entry in os.listdir(proc_root):  # noqa: PTH208 - names alone are wanted
        if entry.isdigit():
            process = find(int(entry), proc_root)
            if process is not None:
                yield process


def find(pid: int, proc_root: Path = PROC, *, started: object = None) -> Process | None:
    """Return a process; None if it has ended (a zombie has) or its start time differs from ``started``."""
    stat = read_stat(proc_root / str(pid))
    if stat is None or stat.ended or started not in (None, stat.started):
        return None
    command = command_line(pid, proc_root)[:120] or f"[{stat.name}]"
    return Process(pid, stat.parent, stat.session, stat.started, command)


def command_line(pid: int, proc_root: Path = PROC) -> str:
    """Return a process's command line; empty for a kernel thread, or if it cannot be read."""
    return " ".join(text(proc_root / str(pid) / "cmdline").replace("\0", " ").split())


def variable(pid: int, name: str) -> str | None:
    """Return a variable of a process's initial environment; None if unset, or if another user's process."""
    wanted = name.encode() + b"="
    with suppress(OSError):
        for entry in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
            if entry.startswith(wanted):
                return entry[len(wanted) :].decode(errors="surrogateescape")
    return None


def ancestors(pid: int) -> set[int]:
    """Return a process and everything it descends from."""
    line: set[int] = set()
    while pid > 0 and pid not in line:
        line.add(pid)
        process = find(pid)
        pid = process.parent if process else 0
    return line


def end(process: Process, number: signal.Signals) -> bool:
    """Signal a process, but no other that has reused its id; return whether it existed."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if find(process.pid, started=process.started) is None:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(handle)


def boot_id() -> str:
    """Return the kernel's name for its present run (random(4)): process ids and CLOCK_BOOTTIME mean nothing
    beyond it. Empty if it cannot be read.
    """
    return text(PROC / "sys/kernel/random/boot_id")


def allow_many() -> int:
    """Raise this process's limit of open files to its hard limit, and return that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def holders(wanted: set[str]) -> dict[str, list[int]]:
    """Map each open target of ``wanted`` (a path, ``socket:[INODE]``) to the processes that hold it.

    Only root sees other users' processes; those of other containers are not visible here.
    """
    found: dict[str, list[int]] = defaultdict(list)
    for process in Path("/proc").iterdir() if wanted else ():
        if not process.name.isdigit():
            continue
        with suppress(OSError):
            for target in {_target(descriptor) for descriptor in (process / "fd").iterdir()} & wanted:
                found[target].append(int(process.name))
    return dict(found)


def _target(descriptor: Path) -> str:
    with suppress(OSError):  # closed in the meantime
        return str(descriptor.readlink())
    return ""
