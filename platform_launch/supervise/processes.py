"""Starting a command, and the part of the machine's processes that is ours: nothing else is ever signalled.

A subreaper (and PID 1) inherits every process of its tree whose parent has died. So whoever is left over is,
sooner or later, a direct child, and a direct child's id cannot be reused before its parent has reaped it:
killing children round after round takes down the whole tree without ever aiming at a stranger.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch.errors import InstallationError, LaunchError
from platform_launch.process_stat import ProcessStat, read_stat
from platform_launch.text import Phrase

_PR_SET_CHILD_SUBREAPER = 36
_BLOCKED_S = 1.0
_TETHER = Path(__file__).with_name("tether.py")


@dataclass(frozen=True)
class Command:
    """What to run. ``env`` is the whole environment; ``cwd`` None means the supervisor's own directory."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path | None = None


def start(command: Command, descriptors: Mapping[int, int]) -> int:
    """Start a command in a session of its own and return its process id, which is also its group's.

    ``descriptors`` maps the child's descriptor numbers to ours. A program that cannot be executed shows as
    exit code 127 or 126 with a line on its stderr. The child gets SIGTERM should this process die.
    """
    tether = (sys.executable, "-I", "-S", str(_TETHER), str(os.getpid()), str(command.cwd or ""))
    try:
        return os.posix_spawn(
            sys.executable,
            (*tether, *command.argv),
            command.env,
            file_actions=[(os.POSIX_SPAWN_DUP2, ours, its) for its, ours in descriptors.items()],
            setsid=True,
        )
    except OSError as error:
        raise LaunchError(
            Phrase(
                "cannot start a process for {program}: {problem}",
                program=command.argv[0],
                problem=error.strerror,
            )
        ) from error


def fill_closed_descriptors() -> None:
    """Put /dev/null where 0, 1 or 2 is closed, lest a pipe of ours gets that number.

    Where there is none it is something else, and :func:`expect_null_device` says so.
    """
    while (fd := _something_open()) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def _something_open() -> int:
    try:
        return os.open(os.devnull, os.O_RDWR)
    except OSError:
        return os.open("/", os.O_RDONLY)


def expect_null_device() -> None:
    """Raise InstallationError where there is no /dev/null."""
    try:
        os.close(os.open(os.devnull, os.O_RDWR))
    except OSError as error:
        raise InstallationError(
            Phrase("{file} cannot be opened: {problem}", file=os.devnull, problem=error.strerror),
            "give the container or chroot a /dev; its runtime makes one",
        ) from error


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Become the parent of descendants whose own parent dies (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def reap() -> Iterator[tuple[int, int]]:
    """Collect every child that has ended: process id and exit code, negative for a signal."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, os.waitstatus_to_exitcode(status)


def has_children() -> bool:
    """Tell cheaply whether any child is left, ended or not."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def children() -> dict[int, str]:
    """Return process id and name of every living child of this process, orphans it inherited included."""
    found = {pid: stat for pid, stat in _processes() if stat.parent == os.getpid()}
    return {pid: stat.name for pid, stat in found.items() if not stat.ended and is_child(pid)}


def children_of(parent: int) -> list[int]:
    """Return the children of another process, those it has not reaped yet included."""
    return [pid for pid, stat in _processes() if stat.parent == parent]


def _processes() -> Iterator[tuple[int, ProcessStat]]:
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names alone are wanted
        stat = read_stat(Path("/proc", entry)) if entry.isdigit() else None
        if stat is not None:
            yield int(entry), stat


def stays_blocked() -> bool:
    """Tell whether a thread of this process waits in the kernel and cannot be ended, as for a frozen disk.

    Such a process stays in the kernel's table, and its exit code is not known, until the wait is over.
    """

    def blocked() -> set[str]:
        tasks: dict[str, ProcessStat | None] = {}
        with suppress(OSError):  # no /proc here
            tasks = {task.name: read_stat(task) for task in Path("/proc/self/task").iterdir()}
        return {name for name, stat in tasks.items() if stat is not None and stat.state == "D"}

    before = blocked()
    if before:
        time.sleep(_BLOCKED_S)  # a disk that works answers within this
    return bool(before & blocked())


def is_child(pid: int) -> bool:
    """Ask the kernel, which alone knows for certain (a /proc may belong to another pid namespace)."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def shell_code(code: int) -> int:
    """Return an exit code as a shell gives it: 128 and the number for a process that a signal ended."""
    return code if code >= 0 else 128 - code


def how_it_ended(code: int) -> str:
    """Say how a process ended: ``exit code 3``, ``SIGKILL``."""
    return f"exit code {code}" if code >= 0 else signal_name(-code)


def signal_name(number: int) -> str:
    """Return what a signal is called; most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_group(leader: int, number: signal.Signals) -> None:
    """Signal the process group of a command that :func:`start` returned and :func:`reap` has not."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def signal_child(pid: int, number: signal.Signals) -> None:
    """Signal one living child that is not reaped yet."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
