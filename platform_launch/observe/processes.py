"""What the kernel tells of a process: /proc, which needs neither a library nor the process's help.

Only files are read that the kernel answers without the process's memory, so that a process that is stuck in
the kernel cannot hold its reader up.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from platform_launch.process_stat import read_stat
from platform_launch.sentences import Sentence, sentence

_MOST_CHILDREN = 64
_STATES = {"T": "state-stopped", "t": "state-traced", "D": "state-blocked", "Z": "state-ended"}


@dataclass(frozen=True)
class ProcessState:
    """A process at one moment. ``state`` is the letter of the kernel, empty when the process is gone.

    ``wchan`` names the function of the kernel in which its main thread waits, ``kernel_stack`` more of them
    (for root), ``waits_for`` the file of the system call it is in, where that can be told. ``main_cpu_s`` is
    the CPU time of the main thread, ``cpu_s`` that of all, ``main_queued_s`` the time that the main thread
    waited for a processor; ``moved_bytes`` counts what was read and written.
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

    @property
    def gone(self) -> bool:
        """Whether there is no such process any more, or only its exit code."""
        return self.state in ("", "Z", "X")

    @property
    def stopped(self) -> bool:
        """Whether a signal or a debugger stopped it."""
        return self.state in ("T", "t")

    @property
    def sentence(self) -> Sentence | None:
        """What is unusual about its state; None where it runs or sleeps."""
        if self.state == "D" and self.wchan:
            return sentence("state-blocked-in", function=self.wchan)
        return sentence(_STATES[self.state]) if self.state in _STATES else None


def read_process(pid: int) -> ProcessState:
    """Return the state of a process."""
    folder = Path("/proc", str(pid))
    whole, main = read_stat(folder), read_stat(folder / "task" / str(pid))
    if whole is None or main is None:
        return ProcessState(pid)
    # A stopped process, whose main thread may have been asleep in the kernel.
    of_all = _status(folder).get("State", "")[:1]
    state = of_all if of_all in ("T", "t", "Z") else main.state
    return ProcessState(
        pid,
        whole.name,
        state,
        "" if (wchan := _read(folder / "wchan").strip()) == "0" else wchan,
        tuple(
            line.split("]", 1)[-1].strip().split("+")[0] for line in _read(folder / "stack").splitlines()[:12]
        ),
        _waits_for(folder),
        main.cpu_s,
        whole.cpu_s,
        _moved_bytes(folder),
        _queued_s(folder / "task" / str(pid)),
    )


def catches(pid: int, number: int) -> bool:
    """Tell whether a process has a handler for a signal; the default action of many is death."""
    caught = _status(Path("/proc", str(pid))).get("SigCgt", "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def holds_open(pid: int, descriptor: int, file: Path) -> bool:
    """Tell whether a descriptor of a process is this file."""
    try:
        return Path(f"/proc/{pid}/fd/{descriptor}").readlink() == file
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """Return the children of a process, of any of its threads, and theirs."""
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


def _waits_for(folder: Path) -> str:
    """Return the file of the call that the main thread is in, for the calls whose first argument is one."""
    number, _, arguments = _read(folder / "syscall").partition(" ")
    if number not in _OF_A_DESCRIPTOR.get(os.uname().machine, ()):
        return ""
    try:
        return str((folder / "fd" / str(int(arguments.split()[0], 16))).readlink())
    except (OSError, ValueError, IndexError):
        return ""


# read, write, pread64, pwrite64, readv, writev, fsync, fdatasync, flock, recvfrom, recvmsg
_OF_A_DESCRIPTOR = {
    "x86_64": {"0", "1", "17", "18", "19", "20", "74", "75", "73", "45", "47"},
    "aarch64": {"63", "64", "67", "68", "65", "66", "82", "83", "32", "207", "212"},
}


def _queued_s(folder: Path) -> float:
    """Read /proc/…/schedstat: nanoseconds on a processor, nanoseconds in the queue for one, turns."""
    numbers = _read(folder / "schedstat").split()
    return int(numbers[1]) / 1e9 if len(numbers) > 1 else 0.0


def _moved_bytes(folder: Path) -> int:
    total = 0
    for line in _read(folder / "io").splitlines():
        name, _, value = line.partition(":")
        if name in ("rchar", "wchar", "read_bytes", "write_bytes"):
            total += int(value)
    return total
