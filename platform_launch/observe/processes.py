"""What the kernel knows about a process (/proc), without a library or the process's help.

Only files that the kernel provides without access to the process's memory are read, so a process that is
stuck in the kernel cannot block its reader.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch.observe.connections import peer_of, socket_inodes
from platform_launch.observe.work import Usage
from platform_launch.process_stat import read_stat
from platform_launch.sentences import Sentence, sentence

_MOST_CHILDREN = 64
_STATES = {"T": "state-stopped", "t": "state-traced", "D": "state-blocked", "Z": "state-ended"}


@dataclass(frozen=True)
class ProcessState:
    """A process at one moment. ``state`` is the kernel's letter, empty if the process has exited.

    ``wchan`` is the kernel function in which its main thread waits, ``kernel_stack`` the functions above it
    (for root). ``call`` is what that thread waits in: read, write, open, connect, accept, lock, poll, sleep,
    child or futex; empty if it runs or if that is unknown. ``waits_for`` is the file of the call, or the
    address of a socket's peer (``HOST:PORT``), ``lock_owner`` the process that holds the file lock it waits
    for. ``main_cpu_s`` is the CPU time of the main thread, ``cpu_s`` that of all, ``main_queued_s`` is how
    long the main thread waited for a processor; ``moved_bytes`` counts bytes read and written.
    """

    pid: int
    name: str = ""
    state: str = ""
    wchan: str = ""
    kernel_stack: tuple[str, ...] = ()
    waits_for: str = ""
    main_cpu_s: float = 0.0
    cpu_s: float = 0.0
    moved_bytes: int = 0
    main_queued_s: float = 0.0
    call: str = ""
    lock_owner: int = 0

    @property
    def ended(self) -> bool:
        """Whether the process has exited."""
        return self.state in ("", "Z", "X")

    @property
    def stopped(self) -> bool:
        """Whether a signal or a debugger stopped it."""
        return self.state in ("T", "t")

    @property
    def sentence(self) -> Sentence | None:
        """Return what is unusual about its state; None if it runs or sleeps."""
        return sentence(_STATES[self.state]) if self.state in _STATES else None


def read_process(pid: int) -> ProcessState:
    """Return the state of a process."""
    folder = Path("/proc", str(pid))
    whole, main = read_stat(folder), read_stat(folder / "task" / str(pid))
    if whole is None or main is None:
        return ProcessState(pid)
    # a stopped process, whose main thread may have been asleep in the kernel
    of_all = _status(folder).get("State", "")[:1]
    state = of_all if of_all in ("T", "t", "Z") else main.state
    wchan = "" if (read := _read(folder / "wchan").strip()) == "0" else read
    call, waits_for, lock_owner = _waits_in(folder, wchan) if state in ("S", "D") else ("", "", 0)
    return ProcessState(
        pid,
        whole.name,
        state,
        wchan,
        tuple(
            line.split("]", 1)[-1].strip().split("+")[0] for line in _read(folder / "stack").splitlines()[:12]
        ),
        waits_for,
        main.cpu_s,
        whole.cpu_s,
        _moved_bytes(folder),
        _queued_s(folder / "task" / str(pid)),
        call,
        lock_owner,
    )


def read_usage(pid: int) -> Usage:
    """Return what a process and its descendants have used so far."""
    folder = Path("/proc", str(pid))
    whole, main = read_stat(folder), read_stat(folder / "task" / str(pid))
    if whole is None or main is None:
        return Usage()
    used, reaped_cpu_s, moved = {}, whole.reaped_cpu_s, _moved_bytes(folder)
    inodes = socket_inodes(pid)
    for child in children(pid):
        stat = read_stat(Path("/proc", str(child)))
        if stat is not None:
            used[child] = (stat.name, stat.cpu_s)
            reaped_cpu_s += stat.reaped_cpu_s
            moved += _moved_bytes(Path("/proc", str(child)))
            inodes |= socket_inodes(child)
    return Usage(
        main.cpu_s,
        whole.cpu_s - main.cpu_s,
        used,
        reaped_cpu_s,
        moved,
        frozenset(inodes),
        main_queued_s=_queued_s(folder / "task" / str(pid)),
        threads=_read_threads(folder / "task", pid),
    )


def throttled_s(pid: int) -> float:
    """Return how long the kernel has throttled a process's control group because of its quota.

    The quota of a parent group counts as well (Linux: Documentation/scheduler/sched-bwc.rst).
    """
    longest = 0.0
    for line in _read(Path(f"/proc/{pid}/cgroup")).splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        mount = {"": "/sys/fs/cgroup"}.get(controllers, "/sys/fs/cgroup/cpu")
        if controllers and "cpu" not in controllers.split(","):
            continue
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        for depth in range(len(parts) + 1):
            for counted in _read(Path(mount, *parts[:depth], "cpu.stat")).splitlines():
                name, _, value = counted.partition(" ")
                unit = {"throttled_usec": 1e6, "throttled_time": 1e9}.get(name)
                if unit and value.isdecimal():
                    longest = max(longest, int(value) / unit)
    return longest


def holds_open(pid: int, descriptor: int, file: Path) -> bool:
    """Return whether a process has this file open."""
    try:
        return Path(f"/proc/{pid}/fd/{descriptor}").readlink() == file
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """Return the descendants of a process, of all its threads."""
    found: list[int] = []
    waiting = [pid]
    while waiting and len(found) < _MOST_CHILDREN:
        parent = waiting.pop()
        try:
            threads = [path.name for path in Path(f"/proc/{parent}/task").iterdir()]
        except OSError:
            continue
        for thread in threads:
            mine = [int(child) for child in _read(Path(f"/proc/{parent}/task/{thread}/children")).split()]
            found += mine
            waiting += mine
    return found[:_MOST_CHILDREN]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _status(folder: Path) -> dict[str, str]:
    lines = _read(folder / "status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _waits_in(folder: Path, wchan: str) -> tuple[str, str, int]:
    """Return the call that the main thread waits in, its file or peer, and the holder of its lock."""
    number, _, arguments = _read(folder / "syscall").partition(" ")
    call = _CALLS.get(os.uname().machine, {}).get(number, "")
    if not call:
        return next((known for part, known in _BY_FUNCTION if part in wchan), ""), "", 0
    if call not in _OF_A_DESCRIPTOR:
        return call, "", 0
    try:
        values = [int(value, 16) for value in arguments.split()]
        link = folder / "fd" / str(values[0])
        file = str(link.readlink())
        if call == "fcntl" and values[1] not in _SET_LOCK_AND_WAIT:
            return "", file, 0
        if call in ("lock", "fcntl"):
            return "lock", file, lock_owner(link.stat(), int(folder.name))
    except (OSError, ValueError, IndexError):
        return call, "", 0
    return call, peer_of(folder, file) if file.startswith("socket:[") else file, 0


def lock_owner(file: os.stat_result, waiter: int) -> int:
    """Return the process that holds the file lock that ``waiter`` waits for; 0 if the kernel does not show
    it.
    """
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    for line in _read(Path("/proc/locks")).splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[5] == place and fields[4].isdecimal() and int(fields[4]) != waiter:
            return int(fields[4])
    return 0


# fcntl's commands that wait for a lock: F_SETLKW and F_OFD_SETLKW.
_SET_LOCK_AND_WAIT = (7, 38)
# The calls whose first argument is a descriptor.
_OF_A_DESCRIPTOR = ("read", "write", "connect", "accept", "lock", "fcntl")
_X86_64 = {
    "read": "0 17 19 45 47",  # read, pread64, readv, recvfrom, recvmsg
    "write": "1 18 20 44 46 74 75",  # write, pwrite64, writev, sendto, sendmsg, fsync, fdatasync
    "open": "2 257",  # open, openat
    "connect": "42",
    "accept": "43 288",
    "fcntl": "72",
    "lock": "73",  # flock
    "poll": "7 23 232 270 271 281",  # poll, select, epoll_wait, pselect6, ppoll, epoll_pwait
    "sleep": "35 230",  # nanosleep, clock_nanosleep
    "child": "61 247",  # wait4, waitid
    "futex": "202 449",  # futex, futex_waitv
}
_AARCH64 = {
    "read": "63 65 67 207 212",
    "write": "64 66 68 82 83 206 211",
    "open": "56",
    "connect": "203",
    "accept": "202 242",
    "fcntl": "25",
    "lock": "32",
    "poll": "22 72 73",
    "sleep": "101 115",
    "child": "95 260",
    "futex": "98 449",
}
_CALLS = {
    machine: {number: call for call, numbers in table.items() for number in numbers.split()}
    for machine, table in (("x86_64", _X86_64), ("aarch64", _AARCH64))
}
# The same by part of the kernel function's name, if a container hides the call.
_BY_FUNCTION = (
    ("futex", "futex"),
    ("nanosleep", "sleep"),
    ("do_wait", "child"),
    ("locks_lock", "lock"),
    ("pipe_read", "read"),
    ("pipe_write", "write"),
    ("wait_for_partner", "open"),
    ("sk_wait_data", "read"),
    ("csk_accept", "accept"),
    ("poll", "poll"),
    ("select", "poll"),
)


def _queued_s(folder: Path) -> float:
    """Return how long a thread has waited for a processor."""
    return _read_schedstat(folder)[1]


def _read_threads(folder: Path, main: int) -> dict[int, tuple[float, int]]:
    """Return the CPU seconds and the time slices of each thread except the main one."""
    found = {}
    with suppress(OSError):
        for entry in folder.iterdir():
            if entry.name != str(main):
                cpu_s, _, turns = _read_schedstat(entry)
                found[int(entry.name)] = cpu_s, turns
    return found


def _read_schedstat(folder: Path) -> tuple[float, float, int]:
    """Read the seconds on a processor, the seconds in its queue, and the time slices; zeros if unknown."""
    numbers = _read(folder / "schedstat").split()
    if len(numbers) != 3:
        return 0.0, 0.0, 0
    return int(numbers[0]) / 1e9, int(numbers[1]) / 1e9, int(numbers[2])


def _moved_bytes(folder: Path) -> int:
    total = 0
    for line in _read(folder / "io").splitlines():
        name, _, value = line.partition(":")
        if name in ("rchar", "wchar"):
            total += int(value)
    return total
