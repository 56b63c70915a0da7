"""NVML's error codes in words: what usually causes each, and what to do about it.

Meanings are those of NVML's ``nvmlReturn_t`` reference; causes are from NVIDIA's container toolkit
troubleshooting page and Xid catalogue.
"""

from __future__ import annotations

from platform_launch.errors import HardwareError
from platform_launch.text import Phrase

NOT_SUPPORTED = 3
DRIVER_NOT_LOADED = 9

_XID = "look in dmesg for Xid errors, drain the node and use another"
_REINSTALL = "reboot the node, or reinstall the driver; then start the container anew"

# code: (NVML's name, what usually causes it, what to do)
_FAULTS = {
    NOT_SUPPORTED: ("NOT_SUPPORTED", "the device lacks what every GPU answers", _REINSTALL),
    4: (
        "NO_PERMISSION",
        "/dev/nvidia* may not be opened by this user or container",
        "check the mode of the device files, or let the container runtime grant the GPUs",
    ),
    8: ("INSUFFICIENT_POWER", "a power cable of the GPU is loose", "use another node"),
    DRIVER_NOT_LOADED: (
        "DRIVER_NOT_LOADED",
        "the kernel module is not loaded, or this container was started without GPUs",
        "run nvidia-smi on the host: if it works, give the container GPUs; if not, reinstall the driver",
    ),
    10: ("TIMEOUT", "the GPU or its firmware no longer answers", _XID),
    11: ("IRQ_ISSUE", "the kernel lost the GPU's interrupts", _XID),
    13: ("FUNCTION_NOT_FOUND", "the driver is too old", "update the NVIDIA driver"),
    14: ("CORRUPTED_INFOROM", "the GPU's own settings memory is damaged", "use another node"),
    15: ("GPU_IS_LOST", "the GPU fell off the bus (Xid 79)", _XID),
    16: ("RESET_REQUIRED", "a fault left the GPU unusable until it is reset", _XID),
    17: (
        "OPERATING_SYSTEM",
        "the operating system or a control group blocks the device",
        "start the container anew; check its device rules",
    ),
    18: (
        "LIB_RM_VERSION_MISMATCH",
        "the driver was updated without a reboot, or the image carries a driver library of its own",
        "reboot the node, or remove the library from the image",
    ),
    19: ("IN_USE", "another process holds the GPU exclusively", "end it (nvidia-smi lists it)"),
    20: ("MEMORY", "the machine is out of memory", "free memory on this node, or use another"),
    27: (
        "NOT_READY",
        "nvidia-fabricmanager is not running on a machine with NVSwitches",
        "start it on the host, in the version of the driver",
    ),
    28: ("GPU_NOT_FOUND", "no GPU answers", _XID),
    29: ("INVALID_STATE", "the GPU was left in a state that forbids use", _XID),
    999: (
        "UNKNOWN",
        "this container lost its access to /dev/nvidia* when the host ran `systemctl daemon-reload`",
        "start the container anew; if nvidia-smi fails on the host too, reboot the node",
    ),
}


def broken(code: int, text: str, query: str, gpu: int | None = None) -> HardwareError:
    """Return the error for a driver that answered ``query`` with ``code``; ``gpu`` is NVML's index."""
    where = "the NVIDIA driver" if gpu is None else f"GPU {gpu}"
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
