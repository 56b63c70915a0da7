"""The distance of two devices on the PCI bus, in the terms of ``nvidia-smi topo``."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

from platform_launch.hardware.kernel_files import text


class PciDistance(IntEnum):
    """Nearest first (nvidia-smi topo -h): one switch, several, host bridge, NUMA node, another NUMA node."""

    PIX = 0
    PXB = 1
    PHB = 2
    NODE = 3
    SYS = 4


def distance(one: str, other: str, sys_root: Path) -> PciDistance | None:
    """Return the distance of two PCI addresses; None if unknown.

    sysfs nests devices as the bus does: ``pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0``.
    """
    bus = sys_root / "bus/pci/devices"
    nodes = [text(bus / address / "numa_node") for address in (one, other)]
    first, second = (_branch(bus / address) for address in (one, other))
    if first and second and first[0] == second[0]:
        if first[:-2] == second[:-2] and len(first) > 3:
            return PciDistance.PIX
        return PciDistance.PXB if first[1] == second[1] else PciDistance.PHB
    if not all(node.isdecimal() for node in nodes):
        return None
    return PciDistance.NODE if nodes[0] == nodes[1] else PciDistance.SYS


def _branch(device: Path) -> tuple[str, ...]:
    """Return the host bridge and what is below it, down to the device; empty if it is not shown."""
    parts = device.resolve().parts
    bridges = [index for index, part in enumerate(parts) if part.startswith("pci") and ":" in part]
    return parts[bridges[0] :] if bridges else ()
