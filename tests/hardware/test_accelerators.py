"""Every vendor's devices, and everything else that reports accelerators, read as one value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import HardwareError
from platform_launch.hardware import Hardware, detect
from platform_launch.hardware.vendors import OTHERS, VENDORS
from tests.hardware import trees
from tests.hardware.trees import Roots, write
from tests.lab.nvml import fake

pytestmark = fake.without_driver

Tree = Callable[[Path], Roots]


def look(roots: Roots, **variables: str) -> Hardware:
    environment = Environment(variables, hostname="node7")
    return detect(environment, sys_root=roots.sys, proc_root=roots.proc, dev_root=roots.dev)


def answer(roots: Roots, **variables: str) -> tuple[str | None, int | None, int]:
    found = look(roots, **variables).accelerator
    return found.vendor.key if found.vendor else None, found.count, found.visible


@pytest.mark.parametrize(
    ("tree", "vendor", "count", "name", "memory_gib"),
    [
        (trees.mi300x, "amd", 8, "AMD Instinct MI300X", 192),
        (trees.ascend910b, "ascend", 8, "Ascend 910B", None),
        (trees.max1550, "intel", 4, "Intel Data Center GPU Max 1550", None),
    ],
)
def test_a_recorded_machine_shows_its_devices(
    tree: Tree, vendor: str, count: int, name: str, memory_gib: int | None, tmp_path: Path
) -> None:
    hardware = look(tree(tmp_path))
    assert answer(tree(tmp_path / "again")) == (vendor, count, count)
    assert {gpu.name for gpu in hardware.gpus.devices} == {name}
    sizes = {gpu.memory_gib and round(gpu.memory_gib) for gpu in hardware.gpus.devices}
    assert sizes == {memory_gib}
    assert len({gpu.pci for gpu in hardware.gpus.devices if gpu.pci}) == (2 if vendor == "intel" else 8)
    assert bool(hardware.gpus.monitored) == (vendor == "amd")


def test_a_container_with_some_of_a_nodes_devices_counts_those(tmp_path: Path) -> None:
    assert answer(trees.ascend910b(tmp_path, count=2)) == ("ascend", 2, 2)
    roots = trees.mi300x(tmp_path / "amd")
    (roots.dev / "dri/renderD128").unlink()
    assert answer(roots) == ("amd", 7, 7)


def test_tiles_that_are_composed_are_one_device(tmp_path: Path) -> None:
    assert answer(trees.max1550(tmp_path), ZE_FLAT_DEVICE_HIERARCHY="COMPOSITE") == ("intel", 2, 2)


@pytest.mark.parametrize(
    ("variables", "indices"),
    [
        ({"HIP_VISIBLE_DEVICES": "3,1"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, [0, 1]),
        ({"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0,1"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "0,2"}, [4, 6]),
        ({"ROCR_VISIBLE_DEVICES": "0,3,4,7", "HIP_VISIBLE_DEVICES": "0,1"}, [0, 3]),  # a report from LUMI
        ({"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-deadbeef0003"}, [3]),
        ({"HIP_VISIBLE_DEVICES": "all"}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"HIP_VISIBLE_DEVICES": "-1"}, []),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_rocms_variables_choose_one_after_another(
    variables: dict[str, str], indices: list[int], tmp_path: Path
) -> None:
    hardware = look(trees.mi300x(tmp_path), **variables)
    assert [gpu.index for gpu in hardware.gpus.devices] == indices
    assert (hardware.accelerator.vendor is None) == (not indices)


def test_a_second_stage_that_counts_from_the_node_finds_nothing(tmp_path: Path) -> None:
    """Slurm without constrained devices sets both to the node's own indices, as Parsl did on Frontier."""
    with pytest.raises(HardwareError, match="CUDA_VISIBLE_DEVICES='1' names '1', which is not there: 1 left"):
        look(trees.mi300x(tmp_path / "one"), ROCR_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="1")
    with pytest.raises(HardwareError, match="'4,5' names '4', which is not there: 2 left"):
        look(trees.mi300x(tmp_path), ROCR_VISIBLE_DEVICES="4,5", CUDA_VISIBLE_DEVICES="4,5")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HIP_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, ("amd", 8, 0)),
        ({"ROCR_VISIBLE_DEVICES": "0"}, ("amd", 1, 0)),
        ({"ASCEND_VISIBLE_DEVICES": "0-7"}, ("ascend", 8, 0)),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0,1"}, ("ascend", 2, 0)),
        ({"AMD_VISIBLE_DEVICES": "0-3,8,17-20"}, ("amd", 9, 0)),
        ({"ZE_AFFINITY_MASK": "0.0,0.1"}, ("intel", 2, 0)),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ("", 2, 0)),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2"}, ("nvidia", 2, 0)),
        ({"TPU_WORKER_ID": "0"}, ("tpu", None, 0)),
        ({"HABANA_VISIBLE_MODULES": "0,1"}, ("gaudi", 2, 0)),
        # healthy twins: what an image sets for whoever runs it, and what hides
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, (None, 0, 0)),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, (None, 0, 0)),
        ({"HABANA_VISIBLE_DEVICES": "all"}, (None, 0, 0)),
        ({"CUDA_VISIBLE_DEVICES": ""}, (None, 0, 0)),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, (None, 0, 0)),
        ({"CUDA_VISIBLE_DEVICES": "0", "ACCELERATE_USE_CPU": "true"}, (None, 0, 0)),
        ({"HIP_VISIBLE_DEVICES": "0", "JAX_PLATFORMS": "cpu"}, (None, 0, 0)),
        ({}, (None, 0, 0)),
    ],
)
def test_a_machine_without_devices_has_what_its_variables_report(
    variables: dict[str, str], expected: tuple[str | None, int | None, int], tmp_path: Path
) -> None:
    assert answer(trees.bare_pod(tmp_path), **variables) == expected


@pytest.mark.parametrize("vendor", [one for one in VENDORS if one.nodes], ids=lambda one: one.key)
def test_a_device_node_is_never_a_cpu_machine(vendor: object, tmp_path: Path) -> None:
    roots = trees.bare_pod(tmp_path)
    pattern = vendor.nodes[0]  # type: ignore[attr-defined]
    write(roots.dev / pattern.replace("[0-9]*", "0"), "")
    found = look(roots).accelerator
    assert found.vendor is vendor


@pytest.mark.parametrize(
    ("folder", "ids", "vendor"),
    [
        ("accel", ("0x1da3", "0x1020"), "gaudi"),
        ("vfio", ("0x1ae0", "0x0063"), "tpu"),
        ("accel", ("0x8086", "0x7d1d"), None),  # the NPU of a laptop's processor
        ("vfio", ("0x1ae0", "0x0042"), None),  # Google's network adapter, and some other device of a guest
    ],
)
def test_nodes_of_a_shared_folder_are_told_apart_by_the_bus(
    folder: str, ids: tuple[str, str], vendor: str | None, tmp_path: Path
) -> None:
    roots = trees.bare_pod(tmp_path)
    write(roots.dev / folder / "0", "")
    device = roots.sys / "bus/pci/devices/0000:05:00.0"
    write(device / "vendor", f"{ids[0]}\n")
    write(device / "device", f"{ids[1]}\n")
    assert answer(roots)[0] == vendor


def test_a_device_node_is_hidden_by_its_own_vendors_variable_only(tmp_path: Path) -> None:
    roots = trees.bare_pod(tmp_path)
    write(roots.dev / "nvidia0", "")
    assert answer(roots, CUDA_VISIBLE_DEVICES="") == (None, 0, 0)
    assert answer(roots, ASCEND_RT_VISIBLE_DEVICES="") == ("nvidia", 1, 0)


def test_the_bus_of_the_host_is_no_evidence_in_a_container(tmp_path: Path) -> None:
    assert answer(trees.mi300x(tmp_path, nodes=False)) == (None, 0, 0)


def test_every_table_names_its_source_and_how_far_it_can_be_trusted() -> None:
    assert len({vendor.key for vendor in VENDORS}) == len(VENDORS)
    for vendor in VENDORS:
        assert vendor.source
        assert vendor.grade in ("measured", "documented", "reported")
        assert vendor.nodes or vendor.visible or vendor.marks
    assert not any(vendor.counted for vendor in OTHERS)
