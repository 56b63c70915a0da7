"""Compute capabilities by the names that people say, for machines whose GPUs are elsewhere.

From NVIDIA's pages "CUDA GPU Compute Capability" and "Legacy CUDA GPU Compute Capability"
(developer.nvidia.com/cuda-gpus, developer.nvidia.com/cuda-legacy-gpus). On a machine with the GPU itself,
NVML knows better (:mod:`platform_launch.hardware.nvml`).
"""

from __future__ import annotations

import re

_MODELS: dict[tuple[int, int], tuple[str, ...]] = {
    (7, 0): ("V100", "TITAN V"),
    (7, 5): ("T4", "RTX 2060", "RTX 2070", "RTX 2080", "RTX 2080 Ti", "TITAN RTX", "RTX 6000", "RTX 8000"),
    (8, 0): ("A100", "A800", "A30"),
    (8, 6): (
        *("A2", "A10", "A16", "A40", "RTX A4000", "RTX A5000", "RTX A6000"),
        *("RTX 3060", "RTX 3070", "RTX 3080", "RTX 3090"),
    ),
    (8, 7): ("Jetson Orin",),
    (8, 9): (
        *("L4", "L20", "L40", "L40S", "RTX 6000 Ada"),
        *("RTX 4060", "RTX 4070", "RTX 4080", "RTX 4090"),
    ),
    (9, 0): ("H100", "H200", "H800", "H20", "GH200"),
    (10, 0): ("B100", "B200", "GB200"),
    (10, 3): ("B300", "GB300"),
    (11, 0): ("Jetson Thor",),
    (12, 0): ("RTX PRO 6000 Blackwell", "RTX 5060", "RTX 5070", "RTX 5080", "RTX 5090"),
    (12, 1): ("GB10", "DGX Spark"),
}

CAPABILITIES: dict[str, tuple[int, int]] = {
    model: capability for capability, models in _MODELS.items() for model in models
}


def capability_of(model: str) -> tuple[int, int] | None:
    """Return the compute capability of ``H100``, ``rtx4090`` or ``DGX Spark``; None for an unknown name."""
    return _BY_PLAIN_NAME.get(plain(model))


def plain(name: str) -> str:
    """Return a name as it is compared: small letters, no spaces and dashes."""
    return re.sub(r"[\s_-]", "", name.lower())


_BY_PLAIN_NAME = {plain(model): capability for model, capability in CAPABILITIES.items()}
