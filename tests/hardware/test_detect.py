"""The whole look at a machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import UsageError
from platform_launch.hardware import Hardware, detect
from tests.hardware import trees
from tests.hardware.trees import Roots
from tests.lab.nvml import fake


def look(roots: Roots, assume: str) -> Hardware:
    environment = Environment({}, hostname="node7")
    return detect(environment, assume=assume, sys_root=roots.sys, proc_root=roots.proc, dev_root=roots.dev)


def test_a_gb200_node_can_be_rehearsed_from_its_recorded_tree(tmp_path: Path) -> None:
    hardware = look(trees.gb200(tmp_path), "4xGB200")
    assert hardware.assumed
    assert [gpu.name for gpu in hardware.gpus.devices] == ["NVIDIA GB200"] * 4
    assert len(hardware.hca_ports) == 4
    assert (hardware.host.hostname, hardware.host.cpus, hardware.host.imex_channel) == ("node7", 144.0, True)
    assert hardware.warnings == ()


def test_adapters_that_may_not_be_opened_are_a_warning(tmp_path: Path) -> None:
    roots = trees.h100_infiniband(tmp_path)
    for device in (roots.dev / "infiniband").iterdir():
        device.unlink()
    [warning] = look(roots, "8xH100").warnings
    assert warning.startswith("8 RDMA port(s) are active, but /dev/infiniband/uverbs* is not here")


def test_a_bare_pod_has_no_adapters_and_nothing_to_warn_about(tmp_path: Path) -> None:
    hardware = look(trees.bare_pod(tmp_path), "cpu")
    assert (hardware.hca_ports, hardware.gpus.devices, hardware.warnings) == ((), (), ())


def test_gpus_that_cannot_be_pretended_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        look(trees.bare_pod(tmp_path), "8xFoo")


@fake.without_driver
def test_warnings_about_gpus_are_the_machines_warnings(tmp_path: Path) -> None:
    roots = trees.bare_pod(tmp_path)
    environment = Environment({"CUDA_VISIBLE_DEVICES": "0,1"}, hostname="node7")
    hardware = detect(environment, sys_root=roots.sys, proc_root=roots.proc, dev_root=roots.dev)
    assert hardware.warnings == ("CUDA_VISIBLE_DEVICES='0,1' names GPUs, but none is visible here",)


_MEASURE = """
import sys, time
from platform_launch.environment import Environment
from platform_launch.hardware import detect
started = time.perf_counter()
detect(Environment.of_this_process(), master_addr="127.0.0.1")
print(time.perf_counter() - started, "pynvml" in sys.modules, "torch" in sys.modules)
"""


@fake.without_driver
def test_a_cpu_machine_is_read_in_a_blink_and_without_the_drivers_package() -> None:
    measured = []
    for _ in range(5):
        command = [sys.executable, "-c", _MEASURE]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        seconds, *imported = done.stdout.split()
        assert imported == ["False", "False"]
        measured.append(float(seconds))
    # 0.016 s on an idle machine. --print-env as a whole may take 0.2 s.
    assert min(measured) < 0.08
