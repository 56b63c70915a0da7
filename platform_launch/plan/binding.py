"""Which CPUs each rank may use: those of its device's NUMA node, shared with the other ranks of that node.

The hook binds each rank before its script starts (``observe/hook``); threads, DataLoader workers and
compilers inherit that. Memory then comes from the same node, by the kernel's default policy
(set_mempolicy(2): local).
A rank never gets fewer CPUs, or with ``exclusive`` fewer cores, than its even share of all. If one NUMA node
has too few, because of a cpuset or because its devices are in one corner of a socket (SNC), the socket's CPUs
are shared; if that does not help, nothing is bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from platform_launch.environment import Environment
from platform_launch.hardware import Hardware
from platform_launch.hardware.numa import Numa, NumaNode, cpu_ranges
from platform_launch.observe import BIND_VARIABLE
from platform_launch.plan.variables import EnvVar
from platform_launch.text import Phrase
from platform_launch.values import dataclass

MODES = ("auto", "node", "exclusive", "none")
Cores = tuple[tuple[int, ...], ...]
"""Cores, each with the CPUs that are its hyperthreads."""
Masks = tuple[tuple[int, ...], ...]
"""The CPUs of each rank."""

# These bind processes by other means (GCC and LLVM OpenMP, accelerate).
_BOUND_BY = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND", "ACCELERATE_CPU_AFFINITY")
_OFF = ("", "0", "false", "none", "disabled")


@dataclass(frozen=True)
class Binding:
    """``ranks`` has the CPUs of each local rank, and is empty if nothing is bound; ``reason`` is why.

    ``share`` is the number of CPUs that each rank can count on.
    """

    mode: str = "none"
    ranks: tuple[tuple[int, ...], ...] = ()
    reason: str = ""
    share: int | None = None

    @property
    def shown(self) -> str:
        """The CPUs of the ranks, ranks with the same CPUs together: ``0–3: 0-55; 4–7: 56-111``."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank, cpus in enumerate(self.ranks):
            groups.setdefault(cpus, []).append(rank)
        return "; ".join(f"{cpu_ranges(ranks)}: {cpu_ranges(cpus)}" for cpus, ranks in groups.items())

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"mode": self.mode, "cpus": [cpu_ranges(one) for one in self.ranks], "reason": self.reason}

    def variables(self) -> list[EnvVar]:
        """Return what the hook reads."""
        if not self.ranks:
            return []
        value = ";".join(cpu_ranges(cpus) for cpus in self.ranks)
        reason = Phrase("CPUs of each local rank: {why}", why=self.reason)
        return [EnvVar(BIND_VARIABLE, value, "binding", reason)]


def bind(mode: str, env: Environment, hardware: Hardware, nproc: int, *, ranks_known: bool) -> Binding:
    """Return the CPUs of each of ``nproc`` ranks. ``ranks_known``: the launcher gives each process its rank.

    ``auto`` binds only if it helps: more than one NUMA node, devices whose nodes are known, and processes
    that are not bound already.
    """
    nodes = hardware.numa.nodes
    if mode == "none":
        return Binding(reason=Phrase("--bind none"))
    if not ranks_known:
        return Binding(reason=Phrase("one process uses the whole node"))
    if len(nodes) < 2 and (mode == "auto" or not nodes):
        return Binding(reason=Phrase("one NUMA node"))
    by_other = next((name for name in _BOUND_BY if env.get(name, "").strip().lower() not in _OFF), None)
    if mode == "auto" and by_other is not None:
        return Binding(reason=Phrase("{name} binds already", name=by_other))
    homes, spread = _nodes_of_devices(hardware, nproc), False
    if homes is None:
        if mode == "auto":
            return Binding(reason=Phrase("the NUMA nodes of the devices are not known"))
        homes = [nodes[rank * len(nodes) // nproc] for rank in range(nproc)]
        spread = True
    share = _own_cores if mode == "exclusive" else _shared_cpus
    for near, group in _levels(hardware.numa):
        cores = [tuple(sorted(core for node in group(home) for core in node.cores)) for home in homes]
        bound = share(cores, nodes)
        if bound is not None:
            why = Phrase("ranks are spread over the NUMA nodes") if spread else near
            return Binding("exclusive" if mode == "exclusive" else "node", bound[0], why, bound[1])
    return Binding(reason=Phrase("a rank would get fewer CPUs than unbound"))


def _nodes_of_devices(hardware: Hardware, nproc: int) -> list[NumaNode] | None:
    """Return each rank's node; None if one is unknown or has no CPUs for this process."""
    devices = hardware.gpus.devices
    if not devices or nproc > len(devices):
        return None
    numbers = [hardware.numa.near.get(gpu.pci) for gpu in devices[:nproc]]
    found = [None if number is None else hardware.numa.node(number) for number in numbers]
    known = [node for node in found if node is not None]
    return known if len(known) == nproc else None


def _levels(numa: Numa) -> list[tuple[str, Callable[[NumaNode], Sequence[NumaNode]]]]:
    """Return how far from its device a rank may run, nearest first."""
    sockets: Mapping[int, list[NumaNode]] = {
        one.package: [node for node in numa.nodes if node.package == one.package] for one in numa.nodes
    }
    return [
        (Phrase("near its device: the NUMA node"), lambda node: [node]),
        (Phrase("near its device: the socket"), lambda node: sockets[node.package]),
    ]


def _shared_cpus(cores: Sequence[Cores], nodes: Sequence[NumaNode]) -> tuple[Masks, int] | None:
    """Return each rank's CPUs, all of its ``cores``, and how many it can count on.

    None if that is less than its even share of all CPUs.
    """
    ranks = Counter(cores)
    share = min(sum(map(len, mine)) // ranks[mine] for mine in ranks)
    if share < sum(len(node.cpus) for node in nodes) // len(cores):
        return None
    return tuple(map(_cpus, cores)), share


def _own_cores(cores: Sequence[Cores], nodes: Sequence[NumaNode]) -> tuple[Masks, int] | None:
    """Return each rank's CPUs, an even part of its ``cores``, and how many the smallest part has.

    None if that part is smaller than an even share of all cores, or empty.
    """
    ranks, seen = Counter(cores), Counter[Cores]()
    parts: list[Cores] = []
    for mine in cores:
        first, last = (index * len(mine) // ranks[mine] for index in (seen[mine], seen[mine] + 1))
        parts.append(mine[first:last])
        seen[mine] += 1
    if min(map(len, parts)) < max(1, sum(len(node.cores) for node in nodes) // len(cores)):
        return None
    masks = tuple(map(_cpus, parts))
    return masks, min(map(len, masks))


def _cpus(cores: Cores) -> tuple[int, ...]:
    return tuple(sorted(cpu for core in cores for cpu in core))
