"""GPUs as values, and warnings that follow from them."""

from __future__ import annotations

from platform_launch.hardware import dcmi
from platform_launch.text import Phrase, joined
from platform_launch.values import dataclass


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds GPU memory. ``memory_mib`` is None if the driver does not report it.

    ``command`` is empty for a process of another container, which this one cannot look up.
    """

    pid: int
    memory_mib: int | None
    command: str


@dataclass(frozen=True)
class Gpu:
    """One visible GPU, or one MIG instance of it (``mig`` True).

    ``index`` is NVML's index of the physical GPU; ``uuid`` is what CUDA_VISIBLE_DEVICES may name,
    empty if the driver does not report it.
    ``memory_gib`` is None if it is not known: a GPU that shares the machine's memory, or an assumed one.
    ``used_gib`` counts every process, also those of other containers.
    ``aliases`` are further names CUDA takes for a MIG instance: its GPU's UUID, and the older
    ``MIG-<GPU UUID>/<GPU instance>/<compute instance>``.
    ``pci`` is the address on the PCI bus, as sysfs writes it (``0000:3b:00.0``), empty if unknown.
    ``vendor`` is a key of :mod:`vendors`.
    """

    index: int
    name: str
    memory_gib: float | None
    uuid: str
    compute_capability: tuple[int, int] | None = None
    mig: bool = False
    processes: tuple[GpuProcess, ...] = ()
    used_gib: float = 0.0
    aliases: tuple[str, ...] = ()
    pci: str = ""
    vendor: str = "nvidia"


@dataclass(frozen=True)
class Gpus:
    """The devices of one vendor that this node's processes can use, and who counted them.

    ``fabric`` names the NVLink domain across nodes, if there is one. ``driver`` and ``cuda`` are versions. No
    driver at all is ``Gpus()``.
    """

    devices: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    source: str = Phrase("no accelerator found")
    warnings: tuple[str, ...] = ()
    fabric: str = ""

    @property
    def vendor(self) -> str:
        """Their vendor, a key of :mod:`vendors`; NVIDIA without any."""
        return self.devices[0].vendor if self.devices else "nvidia"

    @property
    def monitored(self) -> tuple[Gpu, ...]:
        """The devices whose health can be read while a job runs: by NVML, amdgpu's files or DCMI."""
        return tuple(
            gpu
            for gpu in self.devices
            if gpu.vendor in ("nvidia", "amd") or (gpu.vendor == "ascend" and dcmi.library() is not None)
        )


def usage_warnings(devices: tuple[Gpu, ...]) -> list[str]:
    """Warn about what would fail later: memory that is in use already, MIG instances that look like GPUs."""
    return [*_occupied(devices), *_several_instances(devices)]


def _occupied(devices: tuple[Gpu, ...]) -> list[str]:
    """Warn about GPUs that are in use already: the job would start, and run out of memory later."""
    warnings: list[str] = []
    for gpu in devices:
        if gpu.processes:
            holders = joined(_describe(process) for process in gpu.processes)
            warnings.append(
                Phrase(
                    "GPU {index} ({name}) is in use: {holders}",
                    index=gpu.index,
                    name=gpu.name,
                    holders=holders,
                )
            )
        # The driver keeps 1 GiB or so for itself on large GPUs.
        elif gpu.memory_gib and gpu.used_gib > max(2.0, 0.05 * gpu.memory_gib):
            warnings.append(
                Phrase(
                    "GPU {index} ({name}) is in use: {used:.1f} of {memory:.1f} GiB are taken by no process "
                    "that can be seen from here (another container or virtual machine)",
                    index=gpu.index,
                    name=gpu.name,
                    used=gpu.used_gib,
                    memory=gpu.memory_gib,
                )
            )
    return warnings


def _describe(process: GpuProcess) -> str:
    memory = (
        Phrase("unknown memory")
        if process.memory_mib is None
        else Phrase("{mib} MiB", mib=process.memory_mib)
    )
    return Phrase(
        "pid {pid} ({command}) holds {memory}",
        pid=process.pid,
        command=process.command or Phrase("outside this container"),
        memory=memory,
    )


def _several_instances(devices: tuple[Gpu, ...]) -> list[str]:
    if sum(gpu.mig for gpu in devices) < 2:
        return []
    warning = Phrase(
        "several MIG instances are visible, but a process can use only the first one: start "
        "one process per instance, each with its own CUDA_VISIBLE_DEVICES"
    )
    return [warning]
