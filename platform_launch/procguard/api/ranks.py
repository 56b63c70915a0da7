"""Rank assignment: which worker is which process of a group's job. Pure.

The master node comes first, other nodes follow by name, workers of a node by number. LOCAL_RANK counts from 0
on each node, NODE_RANK follows the order of nodes.
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

from platform_launch.procguard.api.refused import problem
from platform_launch.procguard.api.shapes import Problem, Shape


class WorkerKind(str, Enum):
    """What a worker of a group is."""

    PROCESS = "process"
    """One process of the job, usually one per GPU: ranks count processes."""
    NODE = "node"
    """The launcher of a whole node, which starts that node's processes itself: one worker per node."""


class WorkerName(NamedTuple):
    """A worker: its node and its number there. Orders by node name, then by number; ``gn6-0`` in JSON.

    A tuple, because thousands are looked up every second.
    """

    node: str
    number: int

    def __str__(self) -> str:
        return f"{self.node}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> WorkerName:
        """Parse ``gn6-0``; the node's name may contain dashes. Raises ValueError."""
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
    """One worker's ranks. ``rank`` counts processes, or nodes if workers are launchers of nodes."""

    worker: WorkerName
    rank: int
    local_rank: int
    node_rank: int
    local_world_size: int


class RankTable(Shape):
    """Every worker's place, by rank. With ``problems`` nothing may start; ``notes`` are for people.

    ``idle`` are spare workers, without a rank because World Size is smaller.
    """

    master_addr: str = ""
    master_port: int = 0
    kind: WorkerKind = WorkerKind.PROCESS
    places: tuple[Place, ...] = ()
    idle: tuple[WorkerName, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()

    def environment(self, place: Place, backend: str) -> dict[str, str]:
        """Return the rank variables of a worker's command.

        A node's launcher gets variables that count nodes and cannot be mistaken for a process's.
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
    """Assign the ranks of a group.

    ``world_size`` None means the number of workers. If it is smaller, the others are spares, first those of
    the nodes in ``avoided``, but never those of the master's node. ``aliases`` maps a node's name to its host
    name and addresses, which may also be used as the master address.
    """
    problems = _problems_of_workers(workers, kind)
    master = _master(workers, master_addr, aliases or {})
    if isinstance(master, Problem):
        problems.append(master)
    size = len(workers) if world_size is None else world_size
    if not 1 <= size <= len(workers) and workers:
        count, missing = str(len(workers)), str(size - len(workers))
        problems.append(
            problem("world-size-above", world_size=str(size), workers=count, missing=missing)
            if size > 0
            else problem("world-size-invalid", world_size=str(size))
        )
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
        notes=(problem("world-size-below", world_size=str(size), workers=list(map(str, idle))),)
        if idle
        else (),
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
        return [problem("no-workers")]
    twice = sorted(str(worker) for worker, times in Counter(workers).items() if times > 1)
    if twice:
        return [problem("duplicate-workers", workers=twice)]
    crowded = sorted(node for node, times in Counter(worker.node for worker in workers).items() if times > 1)
    if kind is WorkerKind.NODE and crowded:
        return [problem("several-launchers", nodes=crowded)]
    return []


def _master(
    workers: Sequence[WorkerName], master_addr: str, aliases: Mapping[str, Collection[str]]
) -> str | Problem:
    """Return the name of the node that MASTER_ADDR refers to."""
    nodes = sorted({worker.node for worker in workers})
    wanted = master_addr.strip()
    if not wanted:
        return problem("no-master", example=nodes[0] if nodes else "gn6")
    if wanted in nodes:
        return wanted
    matching = [node for node in nodes if wanted in aliases.get(node, ())]
    if len(matching) == 1:
        return matching[0]
    names = matching or nodes or ["none"]
    if matching:
        return problem("master-ambiguous", master=wanted, nodes=names)
    if wanted in {str(worker) for worker in workers}:
        return problem("master-is-worker", master=wanted, node=WorkerName.parse(wanted).node)
    return problem("master-elsewhere", master=wanted, nodes=names)
