"""Ranks by rule: which worker is which process of a group's job. Pure.

The rule: the master node first, other nodes by name, workers of a node by their number; LOCAL_RANK counts
from 0 in each node, NODE_RANK follows the order of nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from platform_launch.procguard.api.shapes import Problem
from platform_launch.text import counted
from platform_launch.topology import Topology

PLATFORM = "procguard"


class WorkerKind(str, Enum):
    """What a worker of a group is."""

    PROCESS = "process"
    """One process of the training, as a rule one a GPU: ranks are those of processes."""
    NODE = "node"
    """The launcher of a whole node, which starts that node's processes itself: one worker a node."""


class WorkerName(NamedTuple):
    """A worker: the node it is on and its number there. Orders by node name, then by number.

    A tuple, since thousands are looked up by it every second.
    """

    node: str
    number: int

    def __str__(self) -> str:
        return f"{self.node}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> WorkerName:
        """Read ``gn6-0``; the node's own name may hold dashes. Raises ValueError."""
        node, dash, number = text.rpartition("-")
        if not (node and dash and number.isascii() and number.isdigit()) or str(int(number)) != number:
            raise ValueError(f"{text!r} is not a worker: expected NODE-NUMBER, such as gn6-0")
        return cls(node, int(number))


@dataclass(frozen=True)
class Place:
    """One worker's place: ``topology`` is its node's, the ranks are its own.

    ``rank`` counts processes, or nodes where a worker is a node's launcher.
    """

    worker: WorkerName
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    topology: Topology
    kind: WorkerKind

    def environment(self, backend: str) -> dict[str, str]:
        """Return the variables the worker's command is started with.

        A node's launcher gets names that count nodes and cannot be taken for a process's.
        """
        node = {
            "MASTER_ADDR": self.topology.master_addr,
            "MASTER_PORT": str(self.topology.master_port),
            "NODE_RANK": str(self.topology.node_rank),
            "NNODES": str(self.topology.nnodes),
        }
        if self.kind is WorkerKind.NODE:
            return node
        process = {
            "WORLD_SIZE": str(self.world_size),
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "BACKEND": backend,
        }
        return node | process


@dataclass(frozen=True)
class RankTable:
    """Every worker's place, by rank. With ``problems`` nothing may start; ``notes`` only want to be read.

    ``idle`` are the workers that a smaller World Size leaves without a rank: spares.
    """

    places: tuple[Place, ...] = ()
    idle: tuple[WorkerName, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()


def assign(
    workers: Sequence[WorkerName],
    *,
    master_addr: str,
    master_port: int,
    world_size: int | None = None,
    kind: WorkerKind = WorkerKind.PROCESS,
    aliases: Mapping[str, Collection[str]] | None = None,
    avoided: Collection[str] = (),
) -> RankTable:
    """Give out the ranks of a group.

    ``world_size`` None means as many as there are workers; with fewer the others are spares, and workers of
    the nodes in ``avoided`` are the first to be: the master's node has no spare. ``aliases`` maps a node's
    name to its host name and addresses, under which the master may have been given as well.
    """
    problems = _problems_of_workers(workers, kind)
    master = _master(workers, master_addr, aliases or {})
    if isinstance(master, Problem):
        problems.append(master)
    size = len(workers) if world_size is None else world_size
    if not 1 <= size <= len(workers) and workers:
        problems.append(_too_large(size, len(workers)) if size > 0 else _too_small(size))
    if problems or isinstance(master, Problem):
        return RankTable(problems=tuple(problems))
    last = {*avoided} - {master}
    chosen = sorted(workers, key=lambda worker: (worker.node in last, worker.node != master, worker))
    ranked = sorted(chosen[:size], key=lambda worker: (worker.node != master, worker))
    idle = sorted(chosen[size:], key=lambda worker: (worker.node != master, worker))
    return RankTable(
        _places(ranked, master_addr.strip(), master_port, kind),
        tuple(idle),
        notes=(_some_idle(size, idle),) if idle else (),
    )


def _places(
    ordered: Sequence[WorkerName], master_addr: str, master_port: int, kind: WorkerKind
) -> tuple[Place, ...]:
    nodes = [(node, list(workers)) for node, workers in groupby(ordered, key=attrgetter("node"))]
    hosts = tuple(node for node, _ in nodes)
    places: list[Place] = []
    for node_rank, (_, workers) in enumerate(nodes):
        topology = Topology(
            platform=PLATFORM,
            nnodes=len(nodes),
            node_rank=node_rank,
            master_addr=master_addr,
            master_port=master_port,
            nproc_per_node=len(workers) if kind is WorkerKind.PROCESS else None,
            hosts=hosts,
        )
        places += [
            Place(worker, len(places) + local, local, len(ordered), len(workers), topology, kind)
            for local, worker in enumerate(workers)
        ]
    return tuple(places)


def _problems_of_workers(workers: Sequence[WorkerName], kind: WorkerKind) -> list[Problem]:
    if not workers:
        return [Problem("no-workers", "the group has no workers", "tick workers and move them to it")]
    twice = sorted(str(worker) for worker, times in Counter(workers).items() if times > 1)
    if twice:
        names = ", ".join(twice)
        return [
            Problem(
                "duplicate-workers",
                f"{names}: the same worker more than once",
                "start each node's agent with a --node name of its own",
                {"workers": names},
            )
        ]
    crowded = sorted(node for node, times in Counter(worker.node for worker in workers).items() if times > 1)
    if kind is WorkerKind.NODE and crowded:
        names = ", ".join(crowded)
        return [
            Problem(
                "several-launchers",
                f"{names}: more than one worker, but each worker of this group launches a whole node",
                "keep one worker of each node in the group, or set the kind to one process per worker",
                {"nodes": names},
            )
        ]
    return []


def _master(
    workers: Sequence[WorkerName], master_addr: str, aliases: Mapping[str, Collection[str]]
) -> str | Problem:
    """Return the name of the node that MASTER_ADDR means."""
    nodes = sorted({worker.node for worker in workers})
    wanted = master_addr.strip()
    if not wanted:
        example = nodes[0] if nodes else "gn6"
        return Problem(
            "no-master",
            "no Master address is set",
            f"enter the name of the node that rank 0 runs on, such as {example}",
            {"example": example},
        )
    if wanted in nodes:
        return wanted
    meant = [node for node in nodes if wanted in aliases.get(node, ())]
    if len(meant) == 1:
        return meant[0]
    values = {"master": wanted, "nodes": ", ".join(meant or nodes) or "none"}
    if meant:
        return Problem(
            "master-ambiguous",
            f"Master address {wanted!r} is an address of several nodes: {values['nodes']}",
            "enter the name of the one that rank 0 is to run on",
            values,
        )
    if wanted in {str(worker) for worker in workers}:
        node = WorkerName.parse(wanted).node
        return Problem(
            "master-is-worker",
            f"Master address {wanted!r} is a worker: expected a node",
            f"enter {node}, without the worker's number",
            {**values, "node": node},
        )
    return Problem(
        "master-elsewhere",
        f"Master address {wanted!r} is no node of this group (nodes: {values['nodes']})",
        "rank 0 must run where MASTER_ADDR points: enter one of these, or move a worker of that node here",
        values,
    )


def _too_large(size: int, count: int) -> Problem:
    return Problem(
        "world-size-above",
        f"World Size is {size}, but the group has {counted(count, 'worker')}: "
        "the others would be waited for in vain",
        f"add {counted(size - count, 'worker')}, or lower World Size",
        {"world_size": str(size), "workers": str(count), "missing": str(size - count)},
    )


def _too_small(size: int) -> Problem:
    return Problem(
        "world-size-invalid",
        f"World Size is {size}: expected at least 1",
        "leave it empty for the number of workers",
        {"world_size": str(size)},
    )


def _some_idle(size: int, idle: Sequence[WorkerName]) -> Problem:
    names = ", ".join(map(str, idle))
    return Problem(
        "world-size-below",
        f"World Size is {size}; left over as spares: {names}",
        "a spare takes over at the next start from a node that is drained, in quarantine or not heard; "
        "leave World Size empty to use every worker",
        {"world_size": str(size), "workers": names},
    )
