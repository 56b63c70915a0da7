"""A stand-in for the NVIDIA driver: a C library of NVML's name, and the lines it answers from.

A child process started with the variables of :func:`environment` finds it as ``libnvidia-ml.so.1``; this
process cannot, since the loader reads LD_LIBRARY_PATH only at start.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from platform_launch.hardware.nvml import library_is_here

_SOURCE = Path(__file__).with_name("nvml.c")

# For tests of a machine that has no driver.
without_driver = pytest.mark.skipif(library_is_here(), reason="this machine has an NVIDIA driver")

COMPILER = shutil.which("gcc")


def build(folder: Path) -> Path:
    """Compile the library into ``folder`` and return that folder."""
    assert COMPILER is not None
    command = [COMPILER, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", str(_SOURCE)]
    subprocess.run([*command, "-o", str(folder / "libnvidia-ml.so.1")], check=True)
    return folder


def environment(library: Path, configuration: Path, lines: tuple[str, ...]) -> dict[str, str]:
    """Write what the driver shall say, and return the variables that put it in a child process's way."""
    say(configuration, lines)
    return {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(configuration)}


def say(configuration: Path, lines: tuple[str, ...]) -> None:
    """Let the driver say something else from now on, to processes that have it open as well."""
    new = configuration.with_suffix(".new")
    new.write_text("".join(f"{line}\n" for line in lines))
    new.replace(configuration)


def driver(version: str = "550.54.15", cuda: int = 12040) -> str:
    return f"driver|{version}|{cuda}"


def uuid(index: int) -> str:
    return f"GPU-{index:08x}-1111-2222-3333-444444444444"


def gpu(
    index: int,
    name: str = "NVIDIA H100 80GB HBM3",
    *,
    memory_mib: int = 81559,
    used_mib: int = 600,
    capability: tuple[int, int] = (9, 0),
    fabric_state: int = 0,
) -> str:
    """Return the line of one GPU; they count in the order of their lines."""
    return f"gpu|{uuid(index)}|{name}|{memory_mib}|{used_mib}|{capability[0]}|{capability[1]}|{fabric_state}"


def h100s(count: int) -> tuple[str, ...]:
    return (driver(), *(gpu(index) for index in range(count)))


def mig(index: int, gpu_instance: int, *, profile: str = "1g.10gb", memory_mib: int = 9728) -> str:
    name = f"NVIDIA H100 80GB HBM3 MIG {profile}"
    return f"mig|{index}|{mig_uuid(index, gpu_instance)}|{name}|{memory_mib}|{gpu_instance}|0"


def mig_uuid(index: int, gpu_instance: int) -> str:
    return f"MIG-{index:04x}{gpu_instance:04x}-5555-6666-7777-888888888888"


def use(index: int, percent: int) -> str:
    """Let a GPU say how busy it is."""
    return f"use|{index}|{percent}"


def process(index: int, pid: int, memory_mib: int) -> str:
    return f"process|{index}|{pid}|{memory_mib}"


def fail(function: str, code: int, index: int = -1) -> str:
    """Let a function answer ``code`` for one GPU, or always (-1)."""
    return f"fail|{function}|{index}|{code}"


RECOVERY_ACTION, PCIE_REPLAYS, NVLINK_ERRORS = 230, 94, 59


def field(index: int, number: int, value: int) -> str:
    """Let a GPU give a value of nvmlDeviceGetFieldValues."""
    return f"field|{index}|{number}|{value}"


def state(index: int, **values: int) -> tuple[str, ...]:
    """Let a GPU say how it is: pending, failure, reasons, clock, ecc, sram, cluster."""
    return tuple(f"is|{index}|{what}|{value}" for what, value in values.items())


def xid(index: int, code: int) -> str:
    return f"xid|{index}|{code}"


def lost(index: int, code: int = 15) -> str:
    """Let a GPU fall off the bus: whatever it is asked it answers with this code."""
    return f"lost|{index}|{code}"
