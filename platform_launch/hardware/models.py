"""Accelerators by their common names, for ``--assume-gpus 8xH100``.

Compute capabilities are from NVIDIA's pages "CUDA GPU Compute Capability" and "Legacy CUDA GPU Compute
Capability" (developer.nvidia.com/cuda-gpus, developer.nvidia.com/cuda-legacy-gpus). On a machine with the
GPU itself, NVML knows better. Other vendors' memory is from their data sheets (amd.com/instinct,
hiascend.com, ark.intel.com), per device as torch counts it: a die of an MI250X, a tile of a Max 1550. PCI ids
are those of pci-ids.ucw.cz.
"""

from __future__ import annotations

import re

from platform_launch.errors import UsageError
from platform_launch.hardware.gpus import Gpu, Gpus
from platform_launch.text import Phrase, joined
from platform_launch.values import dataclass

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


# What the user writes: (NVML's name, NVML's memory in MiB), as nvidia-smi prints them for the usual
# training variant.
_KNOWN: dict[str, tuple[str, int]] = {
    "H100": ("NVIDIA H100 80GB HBM3", 81559),
    "H200": ("NVIDIA H200", 143771),
    "H800": ("NVIDIA H800", 81559),
    "H20": ("NVIDIA H20", 97871),
    "GH200": ("NVIDIA GH200 480GB", 97871),
    "B200": ("NVIDIA B200", 183359),
    "GB200": ("NVIDIA GB200", 189471),
    "A100-80GB": ("NVIDIA A100-SXM4-80GB", 81920),
    "A100-40GB": ("NVIDIA A100-SXM4-40GB", 40960),
    "A800": ("NVIDIA A800-SXM4-80GB", 81920),
    "A40": ("NVIDIA A40", 46068),
    "A10": ("NVIDIA A10", 23028),
    "L40S": ("NVIDIA L40S", 46068),
    "L4": ("NVIDIA L4", 23034),
    "T4": ("Tesla T4", 15360),
    "V100": ("Tesla V100-SXM2-32GB", 32768),
    "RTX 3090": ("NVIDIA GeForce RTX 3090", 24576),
    "RTX 4090": ("NVIDIA GeForce RTX 4090", 24564),
    "RTX 5090": ("NVIDIA GeForce RTX 5090", 32607),
}
_ALIASES = {"A100": "A100-80GB", "H100-80GB": "H100", "V100-32GB": "V100", "4090": "RTX 4090"}


@dataclass(frozen=True)
class _Model:
    """A device of a vendor other than NVIDIA. ``pci`` are vendor and device ids."""

    vendor: str
    name: str
    memory_gib: float
    pci: tuple[tuple[str, str], ...] = ()


_OTHERS: dict[str, _Model] = {
    "MI100": _Model("amd", "AMD Instinct MI100", 32, (("1002", "738c"),)),
    "MI210": _Model("amd", "AMD Instinct MI210", 64, (("1002", "740f"),)),
    "MI250X": _Model("amd", "AMD Instinct MI250X", 64, (("1002", "7408"), ("1002", "740c"))),
    "MI300A": _Model("amd", "AMD Instinct MI300A", 128, (("1002", "74a0"),)),
    "MI300X": _Model("amd", "AMD Instinct MI300X", 192, (("1002", "74a1"), ("1002", "74b5"))),
    "MI325X": _Model("amd", "AMD Instinct MI325X", 256, (("1002", "74a5"), ("1002", "74b9"))),
    "MI350X": _Model("amd", "AMD Instinct MI350X", 288, (("1002", "75a0"),)),
    "MI355X": _Model("amd", "AMD Instinct MI355X", 288, (("1002", "75a3"),)),
    "Ascend910": _Model("ascend", "Ascend 910", 32, (("19e5", "d801"),)),
    "Ascend910B": _Model("ascend", "Ascend 910B", 64, (("19e5", "d802"),)),
    "Ascend910C": _Model("ascend", "Ascend 910C", 64, (("19e5", "d803"),)),
    "Max 1100": _Model("intel", "Intel Data Center GPU Max 1100", 48, (("8086", "0bda"),)),
    "Max 1550": _Model("intel", "Intel Data Center GPU Max 1550", 64, (("8086", "0bd5"),)),
    "Arc B580": _Model("intel", "Intel Arc B580", 12, (("8086", "e20b"),)),
}
_BY_PCI = {one: model.name for model in _OTHERS.values() for one in model.pci}
_LIMIT = 64  # GPUs per node; a typo must not create a million


def parse(text: str) -> Gpus:
    """Read ``8xH100``, ``8xMI300X``, ``4`` (kind unknown), ``0`` or ``cpu``; case does not matter.

    Raises UsageError for anything else.
    """
    source = f"--assume-gpus {text}"
    wanted = text.strip().lower()
    if wanted == "cpu":
        return Gpus(source=source)
    match = re.fullmatch(r"([0-9]{1,4})(?:\s*[x×]\s*(.+))?", wanted)
    if match is None or int(match[1]) > _LIMIT:
        raise UsageError(
            Phrase(
                "--assume-gpus {text!r} cannot be read: expected COUNT or COUNTxNAME with at most {most} "
                "GPUs",
                text=text,
                most=_LIMIT,
            ),
            "write for example 8xH100, 8xA100-80GB, 4 or cpu",
        )
    count, other = int(match[1]), _other(match[2] or "")
    if other is not None:
        devices = tuple(
            Gpu(index, other.name, other.memory_gib, "", vendor=other.vendor) for index in range(count)
        )
        return Gpus(devices, source=source)
    name, memory_gib, capability = _known(match[2], text) if match[2] else ("assumed GPU", None, None)
    devices = tuple(
        Gpu(index, name, memory_gib, f"GPU-00000000-0000-0000-0000-{index:012d}", capability)
        for index in range(count)
    )
    return Gpus(devices, source=source)


def _other(kind: str) -> _Model | None:
    """Return the device of another vendor with this name, None if there is none."""
    return {plain(name): model for name, model in _OTHERS.items()}.get(plain(kind))


def model_of_pci(vendor: str, device: str) -> str:
    """Return the name of a device by its PCI ids (four hexadecimal digits each), empty if unknown."""
    return _BY_PCI.get((vendor, device.lower()), "")


def _known(kind: str, text: str) -> tuple[str, float | None, tuple[int, int] | None]:
    """Return NVML's name, memory in GiB and compute capability of a kind of GPU."""
    written = {plain(name): name for name in _KNOWN} | {plain(alias): _ALIASES[alias] for alias in _ALIASES}
    name = written.get(plain(kind))
    if name is None:
        raise UsageError(
            Phrase(
                "--assume-gpus {text!r}: no GPU called {kind!r} is known here; known are {known}",
                text=text,
                kind=kind,
                known=joined((*_KNOWN, *_OTHERS)),
            ),
            "leave the name out (for example --assume-gpus 8) to assume GPUs of no particular model",
        )
    nvml_name, memory_mib = _KNOWN[name]
    return nvml_name, memory_mib / 1024, capability_of(name.partition("-")[0])
