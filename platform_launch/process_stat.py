"""Reads /proc/PID/stat and status (proc_pid_stat(5), proc_pid_status(5)).

``supervise/guard.py``, which runs without this package, has its own reader. psutil reports neither the
session nor threads, and takes twice as long for all processes of a machine.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessStat:
    """A process or thread. ``state`` is the kernel's letter; ``started`` counts clock ticks since boot.

    ``cpu_s`` is its own CPU time, ``reaped_cpu_s`` that of the children it has waited for. ``exit_status`` is
    that of waitpid(2) for what has ended; 0 too if the kernel does not tell this user. ``disk_faults`` counts
    the accesses to its memory that had to wait for a disk, ``processor`` is the one that it ran on last.
    """

    name: str
    state: str
    parent: int
    session: int
    cpu_s: float
    started: int
    exit_status: int
    reaped_cpu_s: float = 0.0
    disk_faults: int = 0
    processor: int = -1

    @property
    def ended(self) -> bool:
        """Whether nothing is left of it but, at most, its exit code."""
        return self.state in ("Z", "X")


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal; by default, many signals kill it."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def read_stat(folder: Path) -> ProcessStat | None:
    """Read ``stat`` in a folder like /proc/PID or /proc/PID/task/TID; None if it is gone."""
    try:
        # "pid (name) state parent group session …": the name may contain spaces and parentheses.
        head, _, rest = (folder / "stat").read_text(errors="replace").rpartition(")")
        fields = rest.split()
        cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        reaped_cpu_s = (int(fields[13]) + int(fields[14])) / _TICKS_PER_S
        name = head.partition("(")[2]
        parent, session, started, exit_status = (int(fields[place]) for place in (1, 3, 19, 49))
        return ProcessStat(
            name,
            fields[0],
            parent,
            session,
            cpu_s,
            started,
            exit_status,
            reaped_cpu_s,
            int(fields[9]),
            int(fields[36]),
        )
    except (OSError, IndexError, ValueError):
        return None
