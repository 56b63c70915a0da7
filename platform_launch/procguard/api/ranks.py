"""Ranks by rule: which worker is which process of a group's job. Pure.

The rule: the master node first, other nodes by name, workers of a node by their number; LOCAL_RANK counts
from 0 in each node, NODE_RANK follows the order of nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from platform_launch.procguard.api.shapes import Problem, Shape
from platform_launch.text import counted


class WorkerKind(str, Enum):
    """What a worker of a group is."""

    PROCESS = "process"
    """One process of the training, as a rule one a GPU: ranks are those of processes."""
    NODE = "node"
    """The launcher of a whole node, which starts that node's processes itself: one worker a node."""


class WorkerName(NamedTuple):
    """A worker: the node it is on and its number there. Orders by node name, then by number.

    A tuple, since thousands are looked up by it every second; ``gn6-0`` in JSON.
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

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.no_info_after_validator_function(cls.parse, core_schema.str_schema())
        return core_schema.json_or_python_schema(
            json_schema=text,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), text]),
            serialization=core_schema.to_string_ser_schema(),
        )


class Place(Shape):
    """One worker's ranks. ``rank`` counts processes, or nodes if a worker is a node's launcher."""

    worker: WorkerName
    rank: int
    local_rank: int
    node_rank: int
    local_world_size: int


class RankTable(Shape):
    """Every worker's place, by rank. If there are ``problems``, nothing may start; ``notes`` are for people.

    ``idle`` are the workers without a rank because World Size is smaller: spares.
    """

    master_addr: str = ""
    master_port: int = 0
    kind: WorkerKind = WorkerKind.PROCESS
    places: tuple[Place, ...] = ()
    idle: tuple[WorkerName, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()

    def environment(self, place: Place, backend: str) -> dict[str, str]:
        """Return the variables that a worker's command is started with.

        A node's launcher gets names that count nodes and cannot be taken for a process's.
        """
        node = {
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
            "NODE_RANK": str(place.node_rank),
            "NNODES": str(self.places[-1].node_rank + 1),
        }
        if self.kind is WorkerKind.NODE:
            return node
        process = {
            "WORLD_SIZE": str(len(self.places)),
            "RANK": str(place.rank),
            "LOCAL_RANK": str(place.local_rank),
            "LOCAL_WORLD_SIZE": str(place.local_world_size),
            "BACKEND": backend,
        }
        return node | process


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
        master_addr=master_addr.strip(),
        master_port=master_port,
        kind=kind,
        places=_places(ranked),
        idle=tuple(idle),
        notes=(_some_idle(size, idle),) if idle else (),
    )


def _places(ordered: Sequence[WorkerName]) -> tuple[Place, ...]:
    places: list[Place] = []
    for node_rank, (_, group) in enumerate(groupby(ordered, key=attrgetter("node"))):
        workers, first = list(group), len(places)
        places += [
            Place(
                worker=worker,
                rank=first + local_rank,
                local_rank=local_rank,
                node_rank=node_rank,
                local_world_size=len(workers),
            )
            for local_rank, worker in enumerate(workers)
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
