"""Checks that need a child process: torch or JAX is imported, the GPUs are started and used."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from platform_launch.doctor.finding import Finding, error, info, warning
from platform_launch.helper import answer_line
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.supervise import Command, capture
from platform_launch.text import Phrase, joined

_PROBE = Path(__file__).parent / "probes" / "starts.py"
# `import torch` from a cold network file system takes a minute or two, and eight GPUs start one by one.
LIMIT_S = 240.0


def try_library(
    library: str, plan: LaunchPlan, env: Mapping[str, str], limit_s: float = LIMIT_S
) -> list[Finding]:
    """Import torch or jax and use each GPU, in a child process with the job's environment."""
    command = Command((plan.argv[0], str(_PROBE), library, str(int(limit_s) + 5)), env)
    answer = capture(command, timeout_s=limit_s)
    try:
        content: dict[str, Any] = json.loads(answer_line(answer.stdout))
    except ValueError:
        what = Phrase(
            "the process that starts {library} returned no result: {failure}",
            library=library,
            failure=answer.failure(limit_s),
        )
        return [error("probe-unanswered", what, library, _HANGS)]
    judged = of_jax if library == "jax" else of_torch
    vendor = plan.hardware.accelerator.vendor
    # Other vendors' devices have other names, which the probe does not use.
    gpus = len(plan.hardware.gpus.devices) if vendor is not None and vendor.reads_nccl else 0
    return list(judged(content, gpus))


def of_torch(answer: Mapping[str, Any], gpus: int) -> Iterator[Finding]:
    """Judge torch's answer on a node where NVML reports ``gpus``."""
    if problem := answer.get("import_problem"):
        what = Phrase("{library} cannot be imported: {problem}", library="torch", problem=problem)
        yield error("torch-import-failed", what, "torch", _REINSTALL)
        return
    where = f"torch {answer['version']}"
    if not gpus:
        return
    if answer["cuda_problem"]:
        what = Phrase("CUDA does not start: {problem}", problem=answer["cuda_problem"])
        yield error("cuda-unavailable", what, where, _CUDA_HINT)
        return
    built_for_gpus = answer["cuda"] is not None or answer["hip"] is not None
    if built_for_gpus and answer["devices"] != gpus:
        yield error(
            "gpu-count-differs",
            Phrase("GPUs: NVML shows {shown}, torch uses {used}", shown=gpus, used=answer["devices"]),
            where,
            "compare CUDA_VISIBLE_DEVICES with nvidia-smi -L; look in dmesg for Xid errors",
        )
    if built_for_gpus and not answer["nccl"]:
        yield warning(
            "nccl-missing",
            Phrase("{torch} was built without NCCL", torch=where),
            where,
            "install a torch with NCCL (Linux CUDA)",
        )
    for index, problem in answer["allocation_problems"].items():
        yield error(
            "gpu-allocation-failed",
            Phrase("GPU {index} cannot be used: {problem}", index=index, problem=problem),
            f"GPU {index}",
            ("stop other processes that use it, or look in dmesg for Xid errors and use another node"),
        )


def of_jax(answer: Mapping[str, Any], gpus: int) -> Iterator[Finding]:
    """Judge JAX's answer on a node where NVML reports ``gpus``."""
    if problem := answer.get("import_problem"):
        what = Phrase("{library} cannot be imported: {problem}", library="JAX", problem=problem)
        yield error("jax-import-failed", what, "jax", _REINSTALL)
        return
    where = f"jax {answer['version']}"
    if answer["device_problem"]:
        what = Phrase("JAX finds no device it can use: {problem}", problem=answer["device_problem"])
        yield error("jax-devices", what, where, _JAX_HINT)
        return
    if gpus and (answer["backend"] == "cpu" or answer["devices"] != gpus):
        yield error(
            "jax-devices",
            Phrase(
                "GPUs: NVML shows {shown}, JAX uses {used} of its backend {backend}",
                shown=gpus,
                used=answer["devices"],
                backend=answer["backend"],
            ),
            where,
            _JAX_HINT,
        )
    else:
        kinds = joined(answer.get("kinds", ()))
        yield info(
            "jax-uses",
            Phrase(
                "JAX uses {used} of its backend {backend}: {kinds}",
                used=answer["devices"],
                backend=answer["backend"],
                kinds=kinds,
            ),
            where,
        )


def of_deepspeed(texts: list[str], where: str, *, usable: bool) -> list[Finding]:
    """Return the result of ``wheel check`` as findings. ``usable``: no op is broken, some compile late."""
    hint = "platform-launch wheel build compiles them once for all nodes"
    return [(info if usable else warning)("deepspeed-ops", text, where, hint) for text in texts]


_HANGS = Phrase("a job would hang here too: check the GPUs and file systems of this node")
_REINSTALL = Phrase("run the import by hand to see the whole error; pip check lists incompatible packages")
_CUDA_HINT = Phrase(
    "compare torch's CUDA with the driver's (nvidia-smi); error 802 means that "
    "nvidia-fabricmanager is not running"
)
_JAX_HINT = Phrase("install jax[cuda12] for this node's driver, and check JAX_PLATFORMS")
