"""Reads the health of a running job's GPUs, and receives XIDs.

NVIDIA's are read through NVML, AMD's through the driver's files (:mod:`amdgpu`), Ascend's through DCMI.

Nothing is judged here (see ``health/``). A query that a driver or device does not support is None; a GPU that
no longer answers is a reading, not an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platform_launch.hardware import amdgpu
from platform_launch.hardware.dcmi import Dcmi
from platform_launch.hardware.gpus import Gpu
from platform_launch.hardware.nvml import broken
from platform_launch.text import Phrase

_GIB = 1024**3
_TIMEOUT = 10
# NVML's answers for a lost or unusable GPU, and their names.
_LOST = {6: "NOT_FOUND", 15: "GPU_IS_LOST", 16: "RESET_REQUIRED", 28: "GPU_NOT_FOUND"}
# NVML_FI_DEV_…: recovery action, PCIe replays, and errors of all NVLinks: flit and data checksums, replays
# and recoveries (to Hopper); receive errors, recoveries and retried blocks (Blackwell).
_RECOVERY, _REPLAYS, _NVLINK = 230, 94, (38, 45, 52, 59, 208, 215, 295)
_FIELDS = (_RECOVERY, _REPLAYS, *_NVLINK)
_XID_EVENT = 0x8
_UNCORRECTED, _VOLATILE, _SRAM, _SM = 1, 0, 7, 1


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """One GPU at one moment; None for unknown values.

    ``lost`` is why it no longer answers, empty while it does. ``recovery_action`` is 0 or the action that the
    driver requests (NVML_GPU_RECOVERY_ACTION_…). ``rows_pending`` and ``rows_failed`` are flags of the row
    remapper; ECC errors are those since the driver was loaded; ``clock_reasons`` is the mask of reasons for
    throttling (nvmlClocksEventReason…). ``pcie_replays`` and ``nvlink_errors`` only grow. ``alarm`` is an
    NPU's worst alarm (:meth:`dcmi.Dcmi.alarm`).
    """

    index: int
    name: str
    uuid: str
    lost: str = ""
    recovery_action: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    ecc_uncorrected: int | None = None
    sram_uncorrected: int | None = None
    clock_reasons: int | None = None
    sm_clock_mhz: int | None = None
    utilization_percent: int | None = None
    memory_used_gib: float | None = None
    pcie_replays: int | None = None
    nvlink_errors: int | None = None
    alarm: int | None = None


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reported about a GPU. ``at_s`` is by the clock of time.time()."""

    gpu: int
    code: int
    at_s: float


class _GoneError(Exception):
    """A GPU answered with one of ``_LOST``."""


class GpuHealthProbe:
    """Keeps the driver open between readings. For one thread; each call may take as long as the driver likes.

    ``xids_problem`` is why XIDs cannot be received, or empty.
    """

    def __init__(self, devices: Iterable[Gpu], sys_root: Path = Path("/sys")) -> None:
        devices = tuple(devices)
        self._sys_root = sys_root
        self._amd = tuple(gpu for gpu in devices if gpu.vendor == "amd")
        self._ascend = tuple(gpu for gpu in devices if gpu.vendor == "ascend")
        self._devices = {gpu.index: gpu for gpu in devices if gpu.vendor == "nvidia"}
        self._handles: dict[int, Any] = {}
        self._nvml: Any = None
        self._dcmi: Dcmi | None = None
        self._events: Any = None
        self.xids_problem = ""

    def open(self) -> None:
        """Open the driver and subscribe to XIDs. Raises HardwareError."""
        if self._ascend:
            self._dcmi = Dcmi()
        if not self._devices:
            return
        import pynvml  # costs 20 ms, which a CPU machine need not pay

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise broken(error.value, str(error), "nvmlInit") from error
        self._nvml = pynvml
        for index in self._devices:
            with suppress(pynvml.NVMLError):
                self._handles[index] = pynvml.nvmlDeviceGetHandleByIndex(index)
        self._listen()

    def close(self) -> None:
        """Close the driver."""
        if self._nvml is None:
            return
        with suppress(self._nvml.NVMLError):
            if self._events is not None:
                self._nvml.nvmlEventSetFree(self._events)
            self._nvml.nvmlShutdown()
        self._nvml = self._events = None
        self._handles.clear()

    def read(self) -> tuple[GpuHealth, ...]:
        """Return a reading of each GPU that existed at first, even if it is lost."""
        nvidia = self._devices.values() if self._nvml is not None else ()
        return (
            *(self._gpu(gpu) for gpu in nvidia),
            *(self._amd_gpu(gpu) for gpu in self._amd),
            *(_ascend_npu(gpu, self._dcmi) for gpu in self._ascend if self._dcmi is not None),
        )

    def _amd_gpu(self, gpu: Gpu) -> GpuHealth:
        if amdgpu.is_gone(gpu, self._sys_root):
            return GpuHealth(gpu.index, gpu.name, gpu.uuid, lost=Phrase("it is not on the PCI bus"))
        return GpuHealth(
            gpu.index,
            gpu.name,
            gpu.uuid,
            ecc_uncorrected=amdgpu.uncorrectable_errors(gpu, self._sys_root),
            utilization_percent=amdgpu.busy_percent(gpu, self._sys_root),
            memory_used_gib=amdgpu.memory_gib(gpu, "used", self._sys_root),
        )

    def wait(self, seconds: float) -> tuple[Xid, ...]:
        """Wait up to this long for the first XID; return all that have arrived."""
        if self._events is None:
            time.sleep(seconds)
            return ()
        found: list[Xid] = []
        deadline = time.monotonic() + seconds
        while len(found) < 64:
            left_s = 0.0 if found else max(deadline - time.monotonic(), 0.0)
            try:
                data = self._nvml.nvmlEventSetWait_v2(self._events, int(left_s * 1000))
            except self._nvml.NVMLError as error:
                if error.value != _TIMEOUT:
                    self.xids_problem = str(error)  # such as GPU_IS_LOST: the readings will show it
                    self._events = None
                break
            found.append(Xid(self._index_of(data.device), int(data.eventData), time.time()))
        return tuple(found)

    def _listen(self) -> None:
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            for handle in self._handles.values():
                nvml.nvmlDeviceRegisterEvents(handle, _XID_EVENT, events)
        except nvml.NVMLError as error:
            self.xids_problem = str(error)
        else:
            self._events = events if self._handles else None

    def _index_of(self, device: Any) -> int:
        with suppress(self._nvml.NVMLError):
            return int(self._nvml.nvmlDeviceGetIndex(device))
        uuids = {gpu.uuid: index for index, gpu in self._devices.items()}
        with suppress(self._nvml.NVMLError):
            return uuids.get(self._nvml.nvmlDeviceGetUUID(device), -1)
        return -1

    def _gpu(self, gpu: Gpu) -> GpuHealth:
        uuid = gpu.aliases[0] if gpu.mig and gpu.aliases else gpu.uuid
        try:
            return self._ask_all(gpu, uuid)
        except _GoneError as gone:
            return GpuHealth(gpu.index, gpu.name, uuid, lost=str(gone))

    def _ask_all(self, gpu: Gpu, uuid: str) -> GpuHealth:
        handle = self._handles.get(gpu.index)
        if handle is None:
            handle = self._ask("nvmlDeviceGetHandleByIndex", gpu.index)
            if handle is None:
                raise _GoneError("NVML: NOT_FOUND")
            self._handles[gpu.index] = handle
        fields = self._fields(handle)
        rows = self._ask("nvmlDeviceGetRemappedRows", handle)
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        use = self._ask("nvmlDeviceGetUtilizationRates", handle)
        links = [fields[field] for field in _NVLINK if field in fields]
        return GpuHealth(
            gpu.index,
            gpu.name,
            uuid,
            recovery_action=fields.get(_RECOVERY),
            rows_pending=None if rows is None else bool(rows[2]),
            rows_failed=None if rows is None else bool(rows[3]),
            ecc_uncorrected=self._ask("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE),
            sram_uncorrected=self._ask(
                "nvmlDeviceGetMemoryErrorCounter", handle, _UNCORRECTED, _VOLATILE, _SRAM
            ),
            clock_reasons=self._clock_reasons(handle),
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, _SM),
            utilization_percent=None if use is None else int(use.gpu),
            memory_used_gib=None if memory is None else memory.used / _GIB,
            pcie_replays=fields.get(_REPLAYS),
            nvlink_errors=sum(links) if links else None,
        )

    def _clock_reasons(self, handle: Any) -> int | None:
        found = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if found is None:  # the name in older drivers
            found = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return None if found is None else int(found)

    def _fields(self, handle: Any) -> dict[int, int]:
        found = self._ask("nvmlDeviceGetFieldValues", handle, list(_FIELDS)) or ()
        return {one.fieldId: _whole(one) for one in found if one.nvmlReturn == 0}

    def _ask(self, query: str, *arguments: Any) -> Any:
        """Return an answer, None if the device has none. Raises _GoneError."""
        try:
            return getattr(self._nvml, query)(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in _LOST:
                raise _GoneError(f"NVML: {_LOST[error.value]}") from error
            return None
        except AttributeError:  # an older nvidia-ml-py
            return None


def _ascend_npu(npu: Gpu, driver: Dcmi) -> GpuHealth:
    try:
        return GpuHealth(npu.index, npu.name, npu.uuid, alarm=driver.alarm(npu.index))
    except LookupError as gone:
        return GpuHealth(npu.index, npu.name, npu.uuid, lost=str(gone))


def _whole(field: Any) -> int:
    """Return a field's value, by the type in the field."""
    value, kinds = field.value, ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    kind = field.valueType if 0 <= field.valueType < len(kinds) else 3
    return int(getattr(value, kinds[kind]))


def read_once(devices: Sequence[Gpu]) -> tuple[GpuHealth, ...]:
    """Open the driver, read once, and close it. Raises HardwareError."""
    probe = GpuHealthProbe(devices)
    probe.open()
    try:
        return probe.read()
    finally:
        probe.close()
