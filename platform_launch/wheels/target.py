"""The backend of DeepSpeed and the GPUs that a wheel is built for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from platform_launch.errors import InstallationError, UsageError, shown
from platform_launch.text import Phrase
from platform_launch.wheels import architectures
from platform_launch.wheels.architectures import Architecture, Capability
from platform_launch.wheels.machine import Torch

_BACKENDS = ("cpu", "cuda")


@dataclass(frozen=True)
class Target:
    """``backend`` is DeepSpeed's accelerator name, cpu or cuda; ``source`` is where the choice comes from.

    DeepSpeed writes the backend into the wheel and ignores the compiled ops under any other one
    (op_builder/builder.py, ``OpBuilder.load``).
    """

    backend: str
    architectures: tuple[Architecture, ...]
    source: str
    warning: str = ""


def choose(
    torch: Torch,
    gpus: Sequence[Capability],
    *,
    wanted: tuple[Architecture, ...] | None,
    arch_list: str | None = None,
    accelerator: str | None = None,
) -> Target:
    """Choose from ``--arch`` (``wanted``, None for auto), then the environment, then this machine's GPUs.

    ``gpus`` are the capabilities from NVML; ``arch_list`` is TORCH_CUDA_ARCH_LIST and ``accelerator``
    DS_ACCELERATOR, if set. Raises UsageError if they contradict each other or torch.
    """
    if torch.hip is not None:
        raise InstallationError(
            Phrase("torch {version} is built for ROCm: expected a CUDA or CPU build", version=torch.version),
            "wheels for ROCm are not supported here; see DeepSpeed's own installation notes",
        )
    if accelerator is not None and accelerator not in _BACKENDS:
        raise UsageError(
            Phrase(
                "DS_ACCELERATOR={accelerator} is not supported for wheels: expected cpu or cuda",
                accelerator=shown(accelerator),
            ),
            "unset it, and the backend follows from torch and the GPUs",
        )
    if wanted is not None:
        return _for_cuda(torch, wanted, "--arch", accelerator)
    if accelerator == "cpu" or (accelerator is None and torch.cuda is None):
        warning = ""
        if gpus and accelerator is None:
            warning = Phrase(
                "this machine has GPUs, but torch {version} is a CPU build: so is this wheel. A training "
                "with a CUDA build of torch would ignore its ops",
                version=torch.version,
            )
        source = (
            "DS_ACCELERATOR" if accelerator else Phrase("torch {version}, a CPU build", version=torch.version)
        )
        return Target("cpu", (), source, warning)
    if torch.cuda is None:
        return _for_cuda(torch, (), f"DS_ACCELERATOR={accelerator}", accelerator)
    if arch_list is not None:
        # torch accepts spaces too.
        listed = architectures.parse(";".join(arch_list.split()), "TORCH_CUDA_ARCH_LIST")
        return _for_cuda(torch, listed, "TORCH_CUDA_ARCH_LIST", accelerator)
    if not gpus:
        raise UsageError(
            Phrase(
                "--arch auto finds no GPU here, and torch {version} is a CUDA build: expected the "
                "architectures of the nodes that will train",
                version=torch.version,
            ),
            "name them, e.g. --arch H100 or --arch '8.0;9.0'; for CPU nodes set DS_ACCELERATOR=cpu",
        )
    return _for_cuda(torch, architectures.of_gpus(gpus), Phrase("this machine's GPUs (NVML)"), accelerator)


def _for_cuda(torch: Torch, wanted: tuple[Architecture, ...], source: str, accelerator: str | None) -> Target:
    if accelerator == "cpu":
        raise UsageError(
            Phrase(
                "{source} requests GPU code, but DS_ACCELERATOR=cpu: expected one of the two", source=source
            ),
            "unset DS_ACCELERATOR to build for GPUs, or leave --arch out to build for the CPU",
        )
    if torch.cuda is None:
        raise UsageError(
            Phrase(
                (
                    "{source} requests GPU code, but torch {version} is a CPU build: expected the "
                    "torch of the nodes that will train"
                ),
                source=source,
                version=torch.version,
            ),
            "install that torch here, or build on one of those nodes",
        )
    return Target("cuda", wanted, source)
