"""How busy this machine is now: processors, memory, and the room on a disk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

_GIB = 1024**3


@dataclass(frozen=True)
class MachineUse:
    """One reading. ``cpu_percent`` is of all processors, since the reading before."""

    cpu_percent: float
    memory_used_gib: float
    memory_total_gib: float
    disk_free_gib: float | None
    disk_total_gib: float | None


def read_machine_use(folder: Path) -> MachineUse:
    """Return the use of this machine; the disk is the one that ``folder`` is on."""
    memory = psutil.virtual_memory()
    free = total = None
    try:
        disk = os.statvfs(folder)
    except OSError:
        pass
    else:
        free, total = disk.f_bavail * disk.f_frsize / _GIB, disk.f_blocks * disk.f_frsize / _GIB
    used = (memory.total - memory.available) / _GIB
    return MachineUse(psutil.cpu_percent(), used, memory.total / _GIB, free, total)
