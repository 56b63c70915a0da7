"""Memory that is free now, and whether the limit on locked memory binds this process."""

from __future__ import annotations

from pathlib import Path

from platform_launch.hardware import cgroup
from platform_launch.hardware.kernel_files import fields, memory_bytes

_GIB = 1024**3
_CAP_IPC_LOCK = 14  # capabilities(7): memory may be locked beyond RLIMIT_MEMLOCK


def available_gib(sys_root: Path = Path("/sys"), proc_root: Path = Path("/proc")) -> float | None:
    """Return what new processes can use: the machine's available memory or the control group's rest."""
    free = [cgroup.spare_memory_bytes(sys_root, proc_root), memory_bytes(proc_root, "MemAvailable")]
    known = [size for size in free if size is not None]
    return min(known) / _GIB if known else None


def may_lock_any(proc_root: Path = Path("/proc")) -> bool:
    """Tell whether this process is exempt from the limit on locked memory."""
    effective = fields(proc_root / "self/status").get("CapEff", "0")
    return bool(int(effective, 16) >> _CAP_IPC_LOCK & 1)
