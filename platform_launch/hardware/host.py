"""Processor, memory and limits of this machine or container."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from platform_launch.hardware import cgroup
from platform_launch.hardware.kernel_files import fields, memory_bytes

_GIB = 1024**3


@dataclass(frozen=True)
class Host:
    """What this node can spend. Fields are None where the system does not say.

    ``cpus`` is the number of processors this process may use: the smaller of its affinity mask and the
    cgroup's quota (which may be a fraction). ``memory_gib`` is the cgroup's limit or the machine's memory.
    ``locked_memory_gib`` is RLIMIT_MEMLOCK; None means unlimited.
    """

    hostname: str
    cpus: float
    memory_gib: float | None
    shm_gib: float | None
    locked_memory_gib: float | None
    imex_channel: bool = False


def find(hostname: str, *, sys_root: Path, proc_root: Path, dev_root: Path) -> Host:
    """Return what this process may use of the machine called ``hostname``."""
    quota, limit_bytes = cgroup.limits(sys_root, proc_root)
    cpus = float(_allowed_cpus(proc_root))
    known_bytes = [size for size in (memory_bytes(proc_root, "MemTotal"), limit_bytes) if size]
    return Host(
        hostname=hostname,
        cpus=cpus if quota is None else min(cpus, quota),
        memory_gib=min(known_bytes) / _GIB if known_bytes else None,
        shm_gib=_size_gib(dev_root / "shm"),
        locked_memory_gib=_locked_memory_gib(),
        imex_channel=any(dev_root.glob("nvidia-caps-imex-channels/channel*")),
    )


def _allowed_cpus(proc_root: Path) -> int:
    """Count the processors of the affinity mask, e.g. ``Cpus_allowed_list: 0-3,8``."""
    ranges = fields(proc_root / "self/status").get("Cpus_allowed_list")
    return count_cpus(ranges) if ranges else os.cpu_count() or 1


def count_cpus(ranges: str) -> int:
    """Count a kernel list of processors: ``0-3,8`` is 5."""
    bounds = [part.partition("-") for part in ranges.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in bounds)


def _size_gib(folder: Path) -> float | None:
    try:
        filesystem = os.statvfs(folder)
    except OSError:
        return None
    return filesystem.f_blocks * filesystem.f_frsize / _GIB


def _locked_memory_gib() -> float | None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft / _GIB
