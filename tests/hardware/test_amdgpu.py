"""AMD GPUs while a job runs: the driver's files in a recorded tree that changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from platform_launch.environment import Environment
from platform_launch.hardware import Gpu, detect
from platform_launch.hardware.gpu_health import GpuHealthProbe
from platform_launch.hardware.use import GpuMeter
from platform_launch.health.faults import faults
from platform_launch.health.reading import DeviceReading
from tests.hardware import trees
from tests.hardware.trees import Roots, write
from tests.lab.nvml import fake

pytestmark = fake.without_driver
GIB = 1024**3


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Roots, tuple[Gpu, ...]]:
    """Eight MI300X; the driver counts no error yet."""
    roots = trees.mi300x(tmp_path)
    env = Environment({}, hostname="node7")
    gpus = detect(env, sys_root=roots.sys, proc_root=roots.proc, dev_root=roots.dev).gpus.devices
    for gpu in gpus:
        folder = roots.sys / "bus/pci/devices" / gpu.pci
        write(folder / "gpu_busy_percent", f"{90 + gpu.index}\n")
        write(folder / "mem_info_vram_used", f"{(gpu.index + 1) * GIB}\n")
        write(folder / "mem_info_vram_total", f"{192 * GIB}\n")
        write(folder / "ras/umc_err_count", "ue: 0\nce: 3\n")
        write(folder / "ras/gfx_err_count", "ue: 0\nce: 0\n")
    return roots, gpus


def test_use_is_read_without_a_library(machine: tuple[Roots, tuple[Gpu, ...]]) -> None:
    roots, gpus = machine
    use = GpuMeter(gpus, roots.sys).read()
    assert [one.utilization_percent for one in use] == list(range(90, 98))
    assert (use[3].memory_used_gib, use[3].memory_total_gib) == (4.0, 192.0)


def test_errors_of_this_run_and_a_lost_gpu_are_findings(machine: tuple[Roots, tuple[Gpu, ...]]) -> None:
    roots, gpus = machine
    probe = GpuHealthProbe(gpus, roots.sys)
    probe.open()
    first = DeviceReading(0.0, probe.read())
    assert list(faults(first)) == []
    write(roots.sys / "bus/pci/devices" / gpus[2].pci / "ras/umc_err_count", "ue: 2\nce: 3\n")
    (roots.sys / "bus/pci/devices" / gpus[5].pci).unlink()
    shutil.rmtree(roots.sys / "devices/pci" / gpus[5].pci)
    found = {one.where: one.id for one in faults(DeviceReading(1.0, probe.read()), first)}
    assert found == {"GPU 2": "gpu-ecc", "GPU 5": "gpu-lost"}
    probe.close()
