"""What the amdgpu driver reports of a running AMD GPU, in sysfs: no library is needed.

The files are those of Linux, Documentation/gpu/amdgpu: ``gpu_busy_percent`` (thermal), ``mem_info_vram_*``
(memory) and ``ras/*_err_count`` (RAS), which counts uncorrectable (ue) and corrected errors of each block.
"""

from __future__ import annotations

from pathlib import Path

from platform_launch.hardware.gpus import Gpu
from platform_launch.hardware.kernel_files import entries, fields, text

_GIB = 1024**3


def is_gone(gpu: Gpu, sys_root: Path) -> bool:
    """Return whether the device is no longer on the bus."""
    return not _folder(gpu, sys_root).exists()


def busy_percent(gpu: Gpu, sys_root: Path) -> int | None:
    """Return the GPU's recent utilization in percent."""
    return _number(_folder(gpu, sys_root) / "gpu_busy_percent")


def memory_gib(gpu: Gpu, kind: str, sys_root: Path) -> float | None:
    """Return its memory in GiB: ``used`` or ``total``."""
    size = _number(_folder(gpu, sys_root) / f"mem_info_vram_{kind}")
    return None if size is None else size / _GIB


def uncorrectable_errors(gpu: Gpu, sys_root: Path) -> int | None:
    """Return the uncorrectable memory errors of all blocks since the driver was loaded; None without RAS."""
    ras = _folder(gpu, sys_root) / "ras"
    counts = [fields(ras / name).get("ue", "") for name in entries(ras) if name.endswith("_err_count")]
    known = [int(count) for count in counts if count.isdecimal()]
    return sum(known) if known else None


def _folder(gpu: Gpu, sys_root: Path) -> Path:
    return sys_root / "bus/pci/devices" / gpu.pci


def _number(path: Path) -> int | None:
    value = text(path)
    return int(value) if value.isdecimal() else None
