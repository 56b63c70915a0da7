"""The current use of this machine: processors, memory, disk and GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from platform_launch.hardware import amdgpu
from platform_launch.hardware.gpus import Gpu

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


@dataclass(frozen=True)
class GpuUse:
    """One GPU's use at one moment; None if the driver does not report it (a MIG instance's utilization)."""

    index: int
    name: str
    utilization_percent: float | None
    memory_used_gib: float | None
    memory_total_gib: float | None


@dataclass(frozen=True)
class GpuHolder:
    """A process that uses memory of a GPU; the memory is None if the driver does not report it."""

    gpu: int
    pid: int
    memory_gib: float | None


class GpuMeter:
    """Reads the use of the detected GPUs. A call takes as long as the driver takes."""

    def __init__(self, devices: Sequence[Gpu], sys_root: Path = Path("/sys")) -> None:
        self._sys_root = sys_root
        self._amd = tuple(gpu for gpu in devices if gpu.vendor == "amd")
        self._devices = tuple(gpu for gpu in devices if gpu.vendor == "nvidia")
        self._pynvml: Any = None

    def read(self) -> tuple[GpuUse, ...]:
        """Return the use of each GPU; empty without GPUs, and while the driver answers with errors."""
        return (*self._read_nvml(), *(self._amd_use(gpu) for gpu in self._amd))

    def _amd_use(self, gpu: Gpu) -> GpuUse:
        used, total = (amdgpu.memory_gib(gpu, kind, self._sys_root) for kind in ("used", "total"))
        return GpuUse(gpu.index, gpu.name, amdgpu.busy_percent(gpu, self._sys_root), used, total)

    def _read_nvml(self) -> tuple[GpuUse, ...]:
        if not self._devices:
            return ()
        import pynvml  # costs 20 ms, which a CPU machine need not pay

        try:
            if self._pynvml is None:
                pynvml.nvmlInit()
                self._pynvml = pynvml
            return tuple(self._use(gpu) for gpu in self._devices)
        except pynvml.NVMLError:
            self.close()
            return ()

    def holders(self) -> tuple[GpuHolder, ...]:
        """Return the processes that hold memory of the GPUs, as the last :meth:`read` left the driver."""
        nvml = self._pynvml
        found: list[GpuHolder] = []
        for gpu in self._devices if nvml is not None else ():
            with suppress(nvml.NVMLError):
                for process in nvml.nvmlDeviceGetComputeRunningProcesses_v3(self._handle(gpu)):
                    used = process.usedGpuMemory
                    found.append(GpuHolder(gpu.index, process.pid, None if used is None else used / _GIB))
        return tuple(found)

    def close(self) -> None:
        """Close the driver; the next reading opens it again."""
        if self._pynvml is not None:
            with suppress(self._pynvml.NVMLError):
                self._pynvml.nvmlShutdown()
            self._pynvml = None

    def _handle(self, gpu: Gpu) -> Any:
        if gpu.mig:
            return self._pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        return self._pynvml.nvmlDeviceGetHandleByIndex(gpu.index)

    def _use(self, gpu: Gpu) -> GpuUse:
        nvml, handle = self._pynvml, self._handle(gpu)
        utilization = memory = None
        with suppress(nvml.NVMLError_NotSupported):
            utilization = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        with suppress(nvml.NVMLError_NotSupported):  # a GPU that shares the machine's memory
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return GpuUse(
            gpu.index,
            gpu.name,
            utilization,
            None if memory is None else memory.used / _GIB,
            None if memory is None else memory.total / _GIB,
        )
