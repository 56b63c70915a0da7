"""Starts a command, and finds the processes that belong to it; no other process is ever signalled.

A subreaper, like PID 1, becomes the parent of every descendant whose own parent has died. So every leftover
process is a direct child sooner or later, and the id of a direct child is not reused until its parent has
reaped it. Killing children round after round therefore ends the whole tree, and never hits another process.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from platform_launch.errors import InstallationError, LaunchError
from platform_launch.process_stat import ProcessStat, read_stat
from platform_launch.text import Phrase
from platform_launch.values import dataclass

_PR_SET_CHILD_SUBREAPER = 36
_BLOCKED_S = 1.0
_TETHER = Path(__file__).with_name("tether.py")
# What a launch needs at least; jobs need far more.
_FEWEST_FILES = 32
_FEWEST_THREADS = 16


@dataclass(frozen=True)
class Command:
    """What to run. ``env`` is the whole environment; ``cwd`` None means the supervisor's own directory."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path | None = None


def start(command: Command, descriptors: Mapping[int, int]) -> int:
    """Start a command in its own session; return its process id, which is also its group id.

    ``descriptors`` maps the child's descriptor numbers to ours. A program that cannot be executed results in
    exit code 127 or 126 and a line on stderr. The child gets SIGTERM if this process dies.
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
    """Open /dev/null as descriptor 0, 1 or 2 if one is closed, so that no pipe of ours gets that number.

    Without /dev/null, "/" is opened instead, and :func:`expect_null_device` reports it later.
    """
    while (fd := _open_anything()) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def _open_anything() -> int:
    try:
        return os.open(os.devnull, os.O_RDWR)
    except OSError:
        return os.open("/", os.O_RDONLY)


def expect_null_device() -> None:
    """Raise InstallationError if there is no /dev/null."""
    try:
        os.close(os.open(os.devnull, os.O_RDWR))
    except OSError as error:
        raise InstallationError(
            Phrase("{file} cannot be opened: {problem}", file=os.devnull, problem=error.strerror),
            "give the container or chroot a /dev; its runtime makes one",
        ) from error


def expect_limits() -> None:
    """Raise InstallationError if the limits on files, threads or processes are too low for a launch."""
    _expect_descriptors()
    _expect_threads()


def _expect_descriptors() -> None:
    may_be_open, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= may_be_open < _FEWEST_FILES:
        raise InstallationError(
            Phrase(
                "only {may_be_open} files may be open at a time (ulimit -n): expected at least {fewest}, and "
                "jobs need thousands",
                may_be_open=may_be_open,
                fewest=_FEWEST_FILES,
            ),
            "raise the limit of this container or shell, e.g. ulimit -n 65536",
        )


def _expect_threads() -> None:
    tried = Event()
    threads = [Thread(target=tried.wait, daemon=True) for _ in range(_FEWEST_THREADS)]
    started = 0
    try:
        for thread in threads:
            thread.start()
            started += 1
    except RuntimeError as error:  # Python raises this for every limit
        raise InstallationError(
            Phrase(
                "only {started} more threads and processes can be started here: expected at least {fewest}, "
                "and jobs need hundreds",
                started=started,
                fewest=_FEWEST_THREADS,
            ),
            "raise the limit of this container (pids), of this user (ulimit -u), or of the memory that a "
            "process may address (ulimit -v)",
        ) from error
    finally:
        tried.set()


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Adopt descendants whose own parent dies (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def reap() -> Iterator[tuple[int, int]]:
    """Reap the children that have ended; yield process id and exit code, negative for a signal."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, os.waitstatus_to_exitcode(status)


def has_children() -> bool:
    """Return whether any child is left, running or not; this is cheap."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def children() -> dict[int, str]:
    """Return process id and name of every running child of this process, including adopted orphans."""
    if not has_children():  # a machine may have thousands of processes
        return {}
    found = {pid: stat for pid, stat in _processes() if stat.parent == os.getpid()}
    return {pid: stat.name for pid, stat in found.items() if not stat.ended and is_child(pid)}


def children_of(parent: int) -> list[int]:
    """Return the children of another process, including those that it has not reaped yet."""
    return [pid for pid, stat in _processes() if stat.parent == parent]


def _processes() -> Iterator[tuple[int, ProcessStat]]:
    for entry in os.listdir("/proc"):  # noqa: PTH208 - only names are needed
        stat = read_stat(Path("/proc", entry)) if entry.isdigit() else None
        if stat is not None:
            yield int(entry), stat


def stays_blocked() -> bool:
    """Return whether a thread of this process is blocked in the kernel, for example by a frozen disk.

    Until the thread is unblocked, the process cannot exit and its parent gets no exit code.
    """

    def blocked() -> set[str]:
        tasks: dict[str, ProcessStat | None] = {}
        with suppress(OSError):  # no /proc here
            tasks = {task.name: read_stat(task) for task in Path("/proc/self/task").iterdir()}
        return {name for name, stat in tasks.items() if stat is not None and stat.state == "D"}

    before = blocked()
    if before:
        time.sleep(_BLOCKED_S)  # a working disk answers sooner
    return bool(before & blocked())


def is_child(pid: int) -> bool:
    """Return whether a process is our child; asks the kernel, as /proc may be of another pid namespace."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def shell_code(code: int) -> int:
    """Return an exit code as a shell reports it: 128 + the signal if one ended the process."""
    return code if code >= 0 else 128 - code


def how_it_ended(code: int) -> str:
    """Describe how a process ended: ``exit code 3``, ``SIGKILL``."""
    return f"exit code {code}" if code >= 0 else signal_name(-code)


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number: most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_group(leader: int, number: signal.Signals) -> None:
    """Signal the process group of a command that :func:`start` started and :func:`reap` has not reaped."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def signal_child(pid: int, number: signal.Signals) -> None:
    """Signal a child that has not been reaped."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
