"""The whole look at a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import UsageError
from platform_launch.hardware import Hardware, detect
from tests.hardware import trees
from tests.hardware.trees import Roots
from tests.lab.effects import effects_of
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
    assert warning.startswith("RDMA ports are active (8), but /dev/infiniband/uverbs* is not here")


def test_a_bare_pod_has_no_adapters_and_nothing_to_warn_about(tmp_path: Path) -> None:
    hardware = look(trees.bare_pod(tmp_path), "cpu")
    assert (hardware.hca_ports, hardware.gpus.devices, hardware.warnings) == ((), (), ())


def test_gpus_that_cannot_be_pretended_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        look(trees.bare_pod(tmp_path), "8xFoo")


@fake.without_driver
def test_a_cpu_machine_is_read_by_looking_at_few_files_and_without_the_drivers_package() -> None:
    looked = effects_of(
        "detect(Environment.of_this_process(), master_addr='127.0.0.1')",
        after="from platform_launch.environment import Environment\n"
        "from platform_launch.hardware import detect",
    )
    assert not {"pynvml", "torch"} & looked.modules
    assert looked.started == ()
    # A dozen, and a few for each device: of a whole machine, nobody walks through /sys or /proc.
    devices = len(list(Path("/sys/bus/pci/devices").glob("*"))) + len(list(Path("/sys/class/net").glob("*")))
    assert len(looked.read) < 40 + 4 * devices, looked.read


def test_a_rehearsal_counts_the_cpus_of_the_job(tmp_path: Path) -> None:
    roots = trees.h100_infiniband(tmp_path)
    environment = Environment({"SLURM_CPUS_PER_TASK": "3"}, hostname="node7")
    found = detect(environment, assume="8xH100", sys_root=roots.sys, proc_root=roots.proc, dev_root=roots.dev)
    assert (found.host.cpus, look(roots, "8xH100").host.cpus != 3) == (3, True)
