"""Processes of one node: how many, on which devices, with how many threads, without which variables."""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Collection, Iterable

from platform_launch.environment import Environment
from platform_launch.errors import TopologyError
from platform_launch.hardware import Hardware
from platform_launch.plan.variables import EnvVar, Removal
from platform_launch.text import Phrase, counted

# torchrun sets these for each worker; the platform's node-level values would only leak into code that
# starts before it does (accelerate's one-process launcher, site customisation).
NODE_LEVEL = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def processes_per_node(given: int | None, source: str, hardware: Hardware) -> tuple[int, str]:
    """Return the number of processes on this node and where it came from: one a GPU, or one on a CPU machine.

    Raises TopologyError when more processes are asked for than GPUs are visible, because the surplus would
    fail late with ``invalid device ordinal``.
    """
    gpus = len(hardware.gpus.devices)
    if given is None:
        return (
            (gpus, Phrase("GPUs counted ({source})", source=hardware.gpus.source))
            if gpus
            else (1, "one process: no GPU")
        )
    if gpus and given > gpus:
        raise TopologyError(
            Phrase(
                "{given} processes per node ({source}) but {gpus} visible: expected at most one process "
                "a GPU",
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
    """Warn when GPUs of this node would stay idle."""
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
    env: Environment, hardware: Hardware, nproc_per_node: int, temporary: str | None
) -> list[EnvVar]:
    """Return the variables every worker needs, leaving out those already set.

    ``temporary`` is a folder on a local disk for this user alone, None where there is none; ``env`` is
    the environment the launcher was started in.
    """
    gpus = hardware.gpus.devices
    chosen: list[EnvVar] = []

    def offer(name: str, value: str, reason: str) -> None:
        if name not in env:
            chosen.append(EnvVar(name, value, "processes", reason))

    if gpus:
        if "CUDA_VISIBLE_DEVICES" not in env:
            visible = ",".join(g.uuid if g.mig else str(g.index) for g in gpus)
            offer(
                "CUDA_VISIBLE_DEVICES", visible, Phrase("all {count} GPUs that NVML shows", count=len(gpus))
            )
    else:
        offer("DS_ACCELERATOR", "cpu", "no GPU: DeepSpeed must not look for one")
        # Without it a plain Accelerator() names no backend, counts one process and fails on batch sizes.
        offer("ACCELERATE_USE_CPU", "true", "no GPU: accelerate starts gloo for scripts that name no backend")
    threads = max(1, math.floor(hardware.host.cpus / nproc_per_node))
    offer(
        "OMP_NUM_THREADS",
        str(threads),
        Phrase(
            "{cpus:g} CPUs ÷ {processes}; torchrun would set 1",
            cpus=hardware.host.cpus,
            processes=counted(nproc_per_node, "process"),
        ),
    )
    if temporary is not None:
        reason = "local disk: build locks on a shared home block later runs"
        offer("TORCH_EXTENSIONS_DIR", extensions_folder(temporary), reason)
    offer("PYTHONUNBUFFERED", "1", "lines reach the log when they are printed")
    return chosen


def extensions_folder(temporary: str) -> str:
    """Return a folder for compiled torch extensions, one for each interpreter.

    torch adds the Python and CUDA version itself only to its default folder
    (torch/utils/cpp_extension.py, ``_get_build_directory``).
    """
    # hashlib would load OpenSSL at every start, to tell a few interpreters apart.
    interpreter = zlib.crc32(f"{sys.prefix} {sys.version}".encode())
    return f"{temporary}/torch_extensions_{interpreter:08x}"


def removals(env: Iterable[str], keep: Collection[str] = ()) -> list[Removal]:
    """Return the variables of ``env`` that must not reach the training; ``keep`` are set anew."""
    found = []
    for name in sorted(set(env).difference(keep, ("PET_SIGNALS_TO_HANDLE",))):
        if name in NODE_LEVEL:
            found.append(Removal(name, "counts nodes here, and processes in a training"))
        elif name.startswith("PET_"):
            found.append(Removal(name, "would become a default of torchrun, also inside accelerate"))
    return found
