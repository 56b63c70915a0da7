"""Processes of one node: their number, devices, threads, and the variables removed from them."""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Collection, Iterable

from platform_launch.environment import Environment
from platform_launch.errors import HardwareError, TopologyError
from platform_launch.hardware import Accelerator, Hardware
from platform_launch.hardware.vendors import NVIDIA
from platform_launch.plan.variables import EnvVar, Removal
from platform_launch.text import Phrase, counted

# torchrun sets these for each worker; the platform's node-level values would only leak into code that
# starts before it does (accelerate's one-process launcher, site customisation).
NODE_LEVEL = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


_CACHES = {
    "XDG_CACHE_HOME": "cache",
    "TRITON_CACHE_DIR": "cache/triton",
    "TORCHINDUCTOR_CACHE_DIR": "cache/torchinductor",
    "CUDA_CACHE_PATH": "cache/cuda",
}
# Set inside such a container (apptainer.org, Environment and Metadata).
_APPTAINER = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")


def check_accelerator(env: Environment, hardware: Hardware, *, uncounted: bool) -> None:
    """Refuse a node with accelerators that are reported but cannot be used by its processes.

    Without this, the job would run on the CPU and report success. ``uncounted``: the number of processes does
    not depend on the devices, because the user gave it or one process uses all of them. Devices that this
    launcher does not count, or counts by documentation only, then start with what the user set. Raises
    HardwareError.
    """
    accelerator = hardware.accelerator
    vendor = accelerator.vendor
    if vendor is None or accelerator.visible:
        return
    if vendor.key not in ("", NVIDIA.key) and uncounted:
        return
    reported = Phrase("{described} ({source})", described=accelerator.described, source=accelerator.source)
    if vendor.key and not vendor.counted:
        raise HardwareError(
            Phrase(
                "this node has an accelerator of {vendor} ({source}), which this launcher does not count",
                vendor=vendor.title,
                source=accelerator.source,
            ),
            Phrase("pass --nproc-per-node N, or hide it to use the CPU: {how}", how=_cpu(accelerator)),
        )
    raise HardwareError(
        Phrase(
            "no process can use this node's {reported}: {cause}",
            reported=reported,
            cause=_cause(env, hardware),
        ),
        Phrase(
            (
                "start the container with its devices ({container}), or unset a variable that is left "
                "over from another machine; to use the CPU on purpose, {how}"
            ),
            container=Phrase(vendor.container),
            how=_cpu(accelerator),
        ),
    )


def _cause(env: Environment, hardware: Hardware) -> str:
    if any(name in env for name in _APPTAINER):
        return Phrase("this Apptainer container was started without --nv (--rocm for AMD)")
    if hardware.gpus.warnings:
        return hardware.gpus.warnings[0]
    return Phrase("there is neither a driver nor a device node")


def _cpu(accelerator: Accelerator) -> str:
    """Return how to use the CPU in spite of an accelerator."""
    stages = accelerator.vendor.visible if accelerator.vendor else ()
    name = stages[-1][0] if stages else "CUDA_VISIBLE_DEVICES"
    return Phrase("set {name} to nothing ({name}=)", name=name)


def processes_per_node(given: int | None, source: str, hardware: Hardware) -> tuple[int, str]:
    """Return the number of processes on this node and its source: one per GPU, or one on a CPU machine.

    Raises TopologyError if more processes are requested than GPUs are visible, because the surplus would fail
    late with ``invalid device ordinal``.
    """
    gpus = hardware.accelerator.visible
    if given is None:
        found = (gpus, Phrase("GPUs counted ({source})", source=hardware.gpus.source))
        given, source = found if gpus else (1, Phrase("one process: no GPU"))
    instances = sum(gpu.mig for gpu in hardware.gpus.devices)
    if instances and given > 1:
        raise TopologyError(
            Phrase(
                (
                    "{given} processes per node ({source}) on {instances}: a process can use only "
                    "one instance, and NCCL does not connect instances of one GPU"
                ),
                given=given,
                source=source,
                instances=counted(instances, "MIG instance"),
            ),
            "pass --nproc-per-node 1, and start a job of its own for each other instance, with that one in "
            "CUDA_VISIBLE_DEVICES",
        )
    if gpus and given > gpus:
        raise TopologyError(
            Phrase(
                (
                    "{given} processes per node ({source}), but {gpus} visible: expected at most "
                    "one process per GPU"
                ),
                given=given,
                source=source,
                gpus=counted(gpus, "GPU"),
            ),
            Phrase(
                "pass --nproc-per-node {gpus}, or give the container more GPUs (CUDA_VISIBLE_DEVICES "
                "limits what is visible)",
                gpus=gpus,
            ),
        )
    return given, source


def unused_gpus(nproc_per_node: int, hardware: Hardware) -> list[str]:
    """Warn if GPUs of this node would stay idle."""
    gpus = len(hardware.gpus.devices)
    if gpus > nproc_per_node:
        processes = counted(nproc_per_node, "process")
        return [
            Phrase(
                "{unused} of {gpus} GPUs stay unused: {processes} per node",
                unused=gpus - nproc_per_node,
                gpus=gpus,
                processes=processes,
            )
        ]
    return []


def process_variables(
    env: Environment,
    hardware: Hardware,
    nproc_per_node: int,
    temporary: str | None,
    bound_cpus: int | None = None,
) -> list[EnvVar]:
    """Return the variables every worker needs, except those already set.

    ``bound_cpus`` is how many CPUs each rank can count on if ranks are bound.

    ``temporary`` is a private folder on a local disk, None if there is none; ``env`` is the launcher's
    environment.
    """
    gpus, vendor = hardware.gpus.devices, hardware.accelerator.vendor
    chosen: list[EnvVar] = []

    def offer(name: str, value: str, reason: str) -> None:
        if name not in env:
            chosen.append(EnvVar(name, value, "processes", reason))

    if vendor is not None:
        if gpus and vendor.exported and not any(name in env for stage in vendor.visible for name in stage):
            first = gpus[:1] if gpus[0].mig else gpus
            visible = ",".join(g.uuid if g.mig else str(g.index) for g in first)
            offer(
                vendor.exported,
                visible,
                "a process sees one MIG instance only"
                if gpus[0].mig
                else Phrase("all {count} that {source} shows", count=len(gpus), source=hardware.gpus.source),
            )
        if vendor.deepspeed:
            offer("DS_ACCELERATOR", vendor.deepspeed, Phrase("{vendor}", vendor=vendor.title))
    else:
        offer("DS_ACCELERATOR", "cpu", "no GPU: DeepSpeed must not look for one")
        # Without it, a plain Accelerator() has no backend, counts one process and fails on batch sizes.
        offer("ACCELERATE_USE_CPU", "true", "no GPU: accelerate starts gloo for scripts that name no backend")
    threads = max(1, math.floor(hardware.host.cpus / nproc_per_node))
    if bound_cpus is not None:
        threads = max(1, min(threads, bound_cpus))
    offer(
        "OMP_NUM_THREADS",
        str(threads),
        Phrase(
            "{cpus:g} CPUs ÷ {processes}; torchrun would set 1",
            cpus=hardware.host.cpus,
            processes=counted(nproc_per_node, "process"),
        ),
    )
    if temporary is not None and hardware.host.home_problem:
        # Each default is in the home: torch/_inductor/runtime/cache_dir_utils.py, Triton's knobs.py, the XDG
        # base directories that Hugging Face and torch.hub follow, and CUDA's JIT cache.
        for name, folder in _CACHES.items():
            offer(name, f"{temporary}/{folder}", "the home cannot be written")
    if temporary is not None:
        reason = Phrase("local disk: build locks on a shared home block later runs")
        offer("TORCH_EXTENSIONS_DIR", extensions_folder(temporary), reason)
    offer("PYTHONUNBUFFERED", "1", "lines reach the log when they are printed")
    return chosen


def extensions_folder(temporary: str) -> str:
    """Return a folder for compiled torch extensions, one per interpreter.

    torch adds the Python and CUDA version itself only to its default folder
    (torch/utils/cpp_extension.py, ``_get_build_directory``).
    """
    # hashlib would load OpenSSL at every start, to distinguish a few interpreters.
    interpreter = zlib.crc32(f"{sys.prefix} {sys.version}".encode())
    return f"{temporary}/torch_extensions_{interpreter:08x}"


def removals(env: Iterable[str], keep: Collection[str] = ()) -> list[Removal]:
    """Return the variables of ``env`` that must not reach the job; ``keep`` are set again."""
    found = []
    for name in sorted(set(env).difference(keep, ("PET_SIGNALS_TO_HANDLE",))):
        if name in NODE_LEVEL:
            found.append(Removal(name, "counts nodes here, but scripts expect a number of processes"))
        elif name.startswith("PET_"):
            found.append(Removal(name, "would become a default of torchrun, also inside accelerate"))
    return found
