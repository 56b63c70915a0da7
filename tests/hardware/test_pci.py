"""Distances on the bus of a recorded machine: two switches on one socket, one on the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.hardware import rdma
from platform_launch.hardware.pci import PciDistance, distance
from tests.hardware import trees

GPU = "0000:18:00.0"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    switch = "pci0000:15/0000:15:01.0/0000:16:00.0"
    trees.machine(tmp_path, (trees.ib("mlx5_0", "400 Gb/sec (4X NDR)", 1),))
    trees.on_bus(tmp_path, f"{switch}/0000:17:00.0/{GPU}", node=0)
    trees.on_bus(tmp_path, f"{switch}/0000:17:01.0/0000:19:00.0", node=0, adapter="mlx5_0")
    trees.on_bus(tmp_path, "pci0000:15/0000:15:01.0/0000:1a:00.0/0000:1b:00.0/0000:1c:00.0", node=0)
    trees.on_bus(tmp_path, "pci0000:15/0000:15:02.0/0000:1d:00.0", node=0)
    trees.on_bus(tmp_path, "pci0000:37/0000:37:01.0/0000:38:00.0", node=0)
    trees.on_bus(tmp_path, "pci0000:97/0000:97:01.0/0000:98:00.0", node=1)
    trees.on_bus(tmp_path, "pci0000:b7/0000:b7:01.0/0000:b8:00.0", node=-1)
    return tmp_path


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("0000:19:00.0", PciDistance.PIX),
        ("0000:1c:00.0", PciDistance.PXB),
        ("0000:1d:00.0", PciDistance.PHB),
        ("0000:38:00.0", PciDistance.NODE),
        ("0000:98:00.0", PciDistance.SYS),
        ("0000:b8:00.0", None),
        ("0000:ff:00.0", None),
    ],
)
def test_distances_are_those_of_nvidia_smi(address: str, expected: PciDistance | None, machine: Path) -> None:
    assert distance(GPU, address, machine / "sys") is expected


def test_an_adapter_knows_its_address(machine: Path) -> None:
    [port] = rdma.find(machine / "sys")
    assert port.pci == "0000:19:00.0"
