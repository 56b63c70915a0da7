"""What the NVIDIA driver reports, through NVML (package nvidia-ml-py).

Absent is not broken: no driver library is a CPU machine. A driver that answers with an error is a
HardwareError that names NVML's code. Queries that old drivers or some devices do not know (UUID, MIG,
processes, compute capability, fabric) are left out; count, name and memory are not.

Meanings of error codes are those of NVML's ``nvmlReturn_t`` reference; causes are from NVIDIA's container
toolkit troubleshooting page and Xid catalogue.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from platform_launch.errors import HardwareError
from platform_launch.hardware.gpus import Gpu, GpuProcess, Gpus
from platform_launch.hardware.kernel_files import entries, text
from platform_launch.hardware.running import command_line
from platform_launch.text import Phrase, counted

LIBRARY = "libnvidia-ml.so.1"


def library_is_here() -> bool:
    """Return whether NVML can be loaded. Raises HardwareError if it exists but cannot."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        message = str(error)
        # An empty file is a mount point that the container toolkit left behind in an image. Other complaints
        # are of a real library: built for another architecture, or missing what it needs.
        if LIBRARY in message and ("No such file" in message or "file too short" in message):
            return False
        raise HardwareError(
            Phrase("the NVIDIA driver's library cannot be loaded: {message}", message=message),
            "it must be that of the host's driver: let the container runtime mount it, and remove it from "
            "the image",
        ) from error
    return True


def signs_of_gpus(sys_root: Path, proc_root: Path) -> str:
    """Return what shows that this machine has NVIDIA GPUs, as a clause; empty when nothing does.

    Display controllers are class 03 on the PCI bus; NVSwitches and Grace's bridges carry NVIDIA's vendor id
    too, and are others.
    """
    devices = sys_root / "bus/pci/devices"
    modaliases = [text(devices / name / "modalias") for name in entries(devices)]
    gpus = sum(alias.startswith("pci:v000010DE") and "bc03" in alias for alias in modaliases)
    if gpus:
        return Phrase("the PCI bus has {gpus}", gpus=counted(gpus, "NVIDIA GPU"))
    if (proc_root / "driver/nvidia/version").exists():
        return "the NVIDIA kernel module is loaded"
    return ""


NOT_SUPPORTED = 3
DRIVER_NOT_LOADED = 9

_XID = Phrase("look in dmesg for Xid errors, drain the node and use another")
_REINSTALL = Phrase("reboot the node, or reinstall the driver; then restart the container")

# code: (NVML's name, what usually causes it, what to do)
_FAULTS = {
    NOT_SUPPORTED: ("NOT_SUPPORTED", Phrase("the device does not support a basic query"), _REINSTALL),
    4: (
        "NO_PERMISSION",
        Phrase("/dev/nvidia* may not be opened by this user or container"),
        Phrase("check the mode of the device files, or let the container runtime grant the GPUs"),
    ),
    8: ("INSUFFICIENT_POWER", Phrase("a power cable of the GPU is loose"), Phrase("use another node")),
    DRIVER_NOT_LOADED: (
        "DRIVER_NOT_LOADED",
        Phrase("the kernel module is not loaded, or this container was started without GPUs"),
        Phrase(
            "run nvidia-smi on the host: if it works, give the container GPUs; if not, reinstall the driver"
        ),
    ),
    10: ("TIMEOUT", Phrase("the GPU or its firmware no longer answers"), _XID),
    11: ("IRQ_ISSUE", Phrase("the kernel lost the GPU's interrupts"), _XID),
    13: ("FUNCTION_NOT_FOUND", Phrase("the driver is too old"), Phrase("update the NVIDIA driver")),
    14: ("CORRUPTED_INFOROM", Phrase("the GPU's infoROM is corrupted"), Phrase("use another node")),
    15: ("GPU_IS_LOST", Phrase("the GPU fell off the bus (Xid 79)"), _XID),
    16: ("RESET_REQUIRED", Phrase("a fault left the GPU unusable until it is reset"), _XID),
    17: (
        "OPERATING_SYSTEM",
        Phrase("the operating system or a control group blocks the device"),
        Phrase("restart the container; check its device rules"),
    ),
    18: (
        "LIB_RM_VERSION_MISMATCH",
        Phrase("the driver was updated without a reboot, or the image contains its own driver library"),
        Phrase("reboot the node, or remove the library from the image"),
    ),
    19: (
        "IN_USE",
        Phrase("another process holds the GPU exclusively"),
        Phrase("stop it (nvidia-smi lists it)"),
    ),
    20: (
        "MEMORY",
        Phrase("the machine is out of memory"),
        Phrase("free memory on this node, or use another"),
    ),
    27: (
        "NOT_READY",
        Phrase("nvidia-fabricmanager is not running on a machine with NVSwitches"),
        Phrase("start it on the host; its version must match the driver's"),
    ),
    28: ("GPU_NOT_FOUND", Phrase("no GPU answers"), _XID),
    29: ("INVALID_STATE", Phrase("the GPU was left in a state that forbids use"), _XID),
    999: (
        "UNKNOWN",
        "this container lost its access to /dev/nvidia* when the host ran `systemctl daemon-reload`",
        "start the container anew; if nvidia-smi fails on the host too, reboot the node",
    ),
}


def broken(code: int, text: str, query: str, gpu: int | None = None) -> HardwareError:
    """Return the error for a driver that answered ``query`` with ``code``; ``gpu`` is NVML's index."""
    where = Phrase("the NVIDIA driver") if gpu is None else f"GPU {gpu}"
    if code not in _FAULTS:
        return HardwareError(
            Phrase(
                "{where} answered {query} with NVML error {code} ({text})",
                where=where,
                query=query,
                code=code,
                text=text,
            ),
            _XID,
        )
    name, cause, remedy = _FAULTS[code]
    return HardwareError(
        Phrase(
            "{where} answered {query} with NVML_ERROR_{name} ({code}, {text}), usually because {cause}",
            where=where,
            query=query,
            name=name,
            code=code,
            text=text,
            cause=cause,
        ),
        remedy,
    )


_GIB = 1024**3
_MIB = 1024**2

# nvmlGpuFabricState_t: NVSwitch and NVLink rack machines register each GPU before CUDA can start.
_FABRIC_STATES = {1: Phrase("not started"), 2: Phrase("in progress")}
_FABRIC_COMPLETED = 3


def read(*, sys_root: Path, proc_root: Path) -> Gpus:
    """Return every GPU that NVML shows; a GPU whose MIG mode is on is replaced by its instances."""
    if not library_is_here():
        signs = signs_of_gpus(sys_root, proc_root)
        return Gpus(warnings=(_no_driver_for(signs),)) if signs else Gpus()

    import pynvml  # costs 20 ms, which a CPU machine need not pay

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        # A CUDA image on a machine without GPUs gives the same answer as a broken driver.
        if error.value == DRIVER_NOT_LOADED and not signs_of_gpus(sys_root, proc_root):
            return Gpus(warnings=(_CUDA_IMAGE_WITHOUT_GPU,))
        raise broken(error.value, str(error), "nvmlInit") from error
    try:
        return _Machine(pynvml, proc_root).read()
    finally:
        with suppress(pynvml.NVMLError):  # everything has been read
            pynvml.nvmlShutdown()


_CUDA_IMAGE_WITHOUT_GPU = Phrase(
    (
        "{library} is installed, but reports NVML_ERROR_DRIVER_NOT_LOADED ({code}), and this "
        "machine has no NVIDIA GPU: treated as a CPU machine"
    ),
    library=LIBRARY,
    code=DRIVER_NOT_LOADED,
)


def _no_driver_for(signs: str) -> str:
    return Phrase(
        "{signs}, but the driver's library {library} is missing: treated as a CPU machine. "
        "Either this container was started without GPUs (nvidia.com/gpu limits, --gpus), or no "
        "driver is installed",
        signs=signs,
        library=LIBRARY,
    )


class _Machine:
    """Reads an initialized NVML: ``_ask`` for what a launch needs, ``_ask_if_known`` for what it can miss."""

    def __init__(self, pynvml: Any, proc_root: Path) -> None:
        self._pynvml = pynvml
        self._proc_root = proc_root

    def read(self) -> Gpus:
        version = self._ask_if_known("nvmlSystemGetDriverVersion")
        cuda = self._ask_if_known("nvmlSystemGetCudaDriverVersion")
        devices: list[Gpu] = []
        warnings: list[str] = []
        domains: list[str] = []
        for index in range(self._ask("nvmlDeviceGetCount")):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index, gpu=index)
            gpu = self._gpu(index, handle)
            parts = list(self._instances(gpu, handle)) if self._is_partitioned(handle) else [gpu]
            if not parts:
                warnings.append(
                    Phrase(
                        "GPU {index} ({name}) has MIG on, but no instance: it cannot be used",
                        index=index,
                        name=gpu.name,
                    )
                )
            devices += parts
            if (fabric := self._fabric(handle)) is not None:
                warnings += self._fabric_warnings(gpu, fabric)
                domains.append(_domain(fabric))
        return Gpus(
            tuple(devices),
            version,
            None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            "NVML",
            tuple(warnings) if devices else (*warnings, _NO_GPU_SHOWN),
            domains[0] if len(set(domains)) == 1 else "",
        )

    def _gpu(self, index: int, handle: Any) -> Gpu:
        total_gib, used_gib = self._memory_gib(index, handle)
        return Gpu(
            index=index,
            name=self._ask("nvmlDeviceGetName", handle, gpu=index),
            memory_gib=total_gib,
            uuid=self._ask_if_known("nvmlDeviceGetUUID", handle) or "",
            compute_capability=self._ask_if_known("nvmlDeviceGetCudaComputeCapability", handle),
            processes=self._processes(handle),
            used_gib=used_gib,
            pci=self._pci(handle),
        )

    def _pci(self, handle: Any) -> str:
        """Return the address as sysfs writes it: NVML writes the domain with eight digits, in capitals."""
        info = self._ask_if_known("nvmlDeviceGetPciInfo", handle)
        written = "" if info is None else info.busId
        address = (written.decode() if isinstance(written, bytes) else written).lower()
        return address[4:] if len(address) == 16 else address

    def _memory_gib(self, index: int, handle: Any) -> tuple[float | None, float]:
        """Return total and used memory. A GPU that shares the machine's memory supports no such query."""
        try:
            memory = self._pynvml.nvmlDeviceGetMemoryInfo(handle)
        except self._pynvml.NVMLError as error:
            if error.value == NOT_SUPPORTED:
                return None, 0.0
            raise broken(error.value, str(error), "nvmlDeviceGetMemoryInfo", index) from error
        return memory.total / _GIB, memory.used / _GIB

    def _is_partitioned(self, handle: Any) -> bool:
        mode = self._ask_if_known("nvmlDeviceGetMigMode", handle)
        return mode is not None and mode[0] == 1

    def _instances(self, gpu: Gpu, handle: Any) -> Iterator[Gpu]:
        """Yield the MIG instances of a GPU. The slots may have holes."""
        for slot in range(self._ask_if_known("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            part = self._ask_if_known("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
            if part is None:
                continue
            total_gib, used_gib = self._memory_gib(gpu.index, part)
            gpu_instance = self._ask_if_known("nvmlDeviceGetGpuInstanceId", part)
            compute_instance = self._ask_if_known("nvmlDeviceGetComputeInstanceId", part)
            yield Gpu(
                index=gpu.index,
                name=self._ask("nvmlDeviceGetName", part, gpu=gpu.index),
                memory_gib=total_gib,
                uuid=self._ask_if_known("nvmlDeviceGetUUID", part) or "",
                compute_capability=gpu.compute_capability,
                mig=True,
                processes=self._processes(part),
                used_gib=used_gib,
                aliases=(gpu.uuid, f"MIG-{gpu.uuid}/{gpu_instance}/{compute_instance}"),
                pci=gpu.pci,
            )

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        found = self._ask_if_known("nvmlDeviceGetComputeRunningProcesses_v3", handle) or []
        return tuple(
            GpuProcess(
                process.pid,
                None if process.usedGpuMemory is None else process.usedGpuMemory // _MIB,
                command_line(process.pid, self._proc_root)[:60],
            )
            for process in found
        )

    def _fabric(self, handle: Any) -> Any:
        info = self._pynvml.c_nvmlGpuFabricInfo_t()
        answered = self._ask_if_known("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info)) is not None
        return info if answered else None

    def _fabric_warnings(self, gpu: Gpu, info: Any) -> list[str]:
        state = _FABRIC_STATES.get(info.state)
        if info.state == _FABRIC_COMPLETED and info.status:
            state = Phrase("failed with NVML code {status}", status=info.status)
        if state is None:
            return []
        warning = Phrase(
            "GPU {index} ({name}): NVLink fabric registration {state}; CUDA then fails with error "
            "802 (system not yet initialized). Check nvidia-fabricmanager or nvidia-imex on the host",
            index=gpu.index,
            name=gpu.name,
            state=state,
        )
        return [warning]

    def _ask(self, query: str, *arguments: Any, gpu: int | None = None) -> Any:
        try:
            return getattr(self._pynvml, query)(*arguments)
        except self._pynvml.NVMLError as error:
            raise broken(error.value, str(error), query, gpu) from error

    def _ask_if_known(self, query: str, *arguments: Any) -> Any:
        try:
            return getattr(self._pynvml, query)(*arguments)
        except self._pynvml.NVMLError:
            return None


def _domain(fabric: Any) -> str:
    """Return the NVLink domain of several nodes that a GPU belongs to; within one node the UUID is zero."""
    uuid = bytes(fabric.clusterUuid).hex()
    return f"{uuid}.{fabric.cliqueId}" if fabric.state == _FABRIC_COMPLETED and uuid.strip("0") else ""


_NO_GPU_SHOWN = (
    "the NVIDIA driver answers, but shows no GPU: this container was given none "
    "(NVIDIA_VISIBLE_DEVICES, nvidia.com/gpu limits), or they fell off the bus"
)
