"""Whether this machine has an NVIDIA driver and GPUs at all, asked without the driver's help."""

from __future__ import annotations

import ctypes
from pathlib import Path

from platform_launch.errors import HardwareError
from platform_launch.hardware.kernel_files import entries, text
from platform_launch.text import Phrase, counted

LIBRARY = "libnvidia-ml.so.1"


def library_is_here() -> bool:
    """Tell whether NVML can be loaded. Raises HardwareError when it is there and cannot."""
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
            "it must belong to the host's driver: let the container runtime mount it, not the image carry it",
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
