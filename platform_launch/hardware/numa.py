"""NUMA nodes: which CPUs this process may use are near which device.

The files are those of Linux, Documentation/ABI/stable/sysfs-devices-node and sysfs-bus-pci. What the affinity
mask forbids (a cpuset of the cgroup, Slurm, Kubernetes' static policy) is left out from the start. Nodes
without CPUs, such as a GB200's GPU memory, are left out too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path

from platform_launch.hardware.kernel_files import entries, fields, text
from platform_launch.values import dataclass


@dataclass(frozen=True)
class NumaNode:
    """One node. ``cores`` are its allowed CPUs, grouped into hyperthreads; ``package`` is its socket."""

    number: int
    package: int
    cores: tuple[tuple[int, ...], ...]

    @property
    def cpus(self) -> tuple[int, ...]:
        """All of its allowed CPUs."""
        return tuple(sorted(cpu for core in self.cores for cpu in core))


@dataclass(frozen=True)
class Numa:
    """The nodes with CPUs for this process, and the node of each device, by its PCI address.

    A device whose node the firmware does not report (virtual machines) is missing from ``near``.
    """

    nodes: tuple[NumaNode, ...] = ()
    near: Mapping[str, int] = field(default_factory=dict)

    def node(self, number: int) -> NumaNode | None:
        """Return a node by its number."""
        return next((one for one in self.nodes if one.number == number), None)


def find(addresses: Iterable[str], *, sys_root: Path, proc_root: Path) -> Numa:
    """Return the nodes of this machine, and of these PCI addresses. A single node is not examined further."""
    allowed = set(parse_cpus(fields(proc_root / "self/status").get("Cpus_allowed_list", "")))
    folder = sys_root / "devices/system/node"
    numbers = sorted(int(name[4:]) for name in entries(folder) if name[:4] == "node" and name[4:].isdecimal())
    cpus = {number: parse_cpus(text(folder / f"node{number}/cpulist")) for number in numbers}
    here = {number: [cpu for cpu in cpus[number] if cpu in allowed] for number in numbers}
    here = {number: found for number, found in here.items() if found}
    if len(here) < 2:
        return Numa(tuple(NumaNode(n, 0, tuple((cpu,) for cpu in found)) for n, found in here.items()))
    near = {address: _node_of(sys_root / "bus/pci/devices" / address) for address in addresses if address}
    return Numa(
        tuple(_node(number, found, sys_root / "devices/system/cpu") for number, found in here.items()),
        {address: number for address, number in near.items() if number is not None},
    )


def _node(number: int, cpus: list[int], folder: Path) -> NumaNode:
    cores: dict[tuple[int, ...], list[int]] = {}
    for cpu in cpus:
        siblings = parse_cpus(text(folder / f"cpu{cpu}/topology/thread_siblings_list")) or (cpu,)
        cores.setdefault(siblings, []).append(cpu)
    package = text(folder / f"cpu{cpus[0]}/topology/physical_package_id")
    return NumaNode(
        number,
        int(package) if package.isdecimal() else number,
        tuple(tuple(core) for core in sorted(cores.values())),
    )


def _node_of(device: Path) -> int | None:
    number = text(device / "numa_node")
    return int(number) if number.isdecimal() else None


def parse_cpus(ranges: str) -> tuple[int, ...]:
    """Read a kernel list of CPUs: ``0-3,8`` is 0, 1, 2, 3 and 8; invalid text is empty."""
    found: list[int] = []
    for part in filter(None, (part.strip() for part in ranges.split(","))):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            return ()
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def cpu_ranges(cpus: Iterable[int]) -> str:
    """Write CPUs as the kernel does: ``0-3,8``."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
