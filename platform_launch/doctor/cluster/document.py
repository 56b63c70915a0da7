"""The messages between the doctor's nodes, and the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar

from platform_launch.rendezvous.messages import Message
from platform_launch.rendezvous.purpose import Purpose

_MIB = 2**20
_MOST_NODES = 100_000


@dataclass(frozen=True)
class DoctorTask(Message):
    """The task of one node's part.

    ``address`` is this node's address for the others, ``mtu`` that of its interface, 0 if unknown.
    ``backend`` is ``gloo``, ``nccl`` or ``jax``; ``workers`` the number of this node's processes in a
    collective. ``network`` are the switches above this node. The limits are in seconds: for all nodes to
    join, and for one whole collective.
    """

    node_rank: int
    nnodes: int
    host: str
    address: str
    mtu: int
    job_id: str | None
    master_addr: str
    master_port: int
    rendezvous_ports: tuple[int, ...]
    backend: str
    workers: int
    join_limit_s: float
    collective_limit_s: float
    network: tuple[str, ...] = ()


@dataclass(frozen=True)
class Endpoint(Message):
    """A node's address, and the switches above it. It listens on ``port`` while the nodes try each other."""

    host: str
    address: str
    port: int
    mtu: int = 0
    network: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gap:
    """Nodes that one node cannot reach for the same reason: one entry for a thousand behind a firewall.

    ``ranges`` are the first and last of consecutive ranks; ``only_large``: small packets reach them. Raises
    ValueError.
    """

    problem: str
    ranges: tuple[tuple[int, ...], ...]
    only_large: bool = False

    def __post_init__(self) -> None:
        ends = [-1]
        for found in self.ranges:
            if len(found) != 2 or not ends[-1] < found[0] <= found[1] < _MOST_NODES:
                raise ValueError(f"ranges of ranks: expected them in order, found {found}")
            ends += found

    @property
    def ranks(self) -> Iterator[int]:
        """All of them."""
        return chain.from_iterable(range(first, last + 1) for first, last in self.ranges)


@dataclass(frozen=True)
class ReachReport(Message):
    """Which nodes one node cannot reach; ``master_port``: why it cannot reach MASTER_PORT, or empty.

    ``master_unnamed``: because MASTER_ADDR does not resolve there.
    """

    gaps: tuple[Gap, ...]
    master_port: str
    master_unnamed: bool


@dataclass(frozen=True)
class Share(Message):
    """One node's result of a collective: its round, and see :class:`Measurement`."""

    round: int
    problem: str = ""
    wrong: bool = False
    latency_us: float = 0.0
    bandwidth_gbps: float = 0.0


@dataclass(frozen=True)
class GroupAddress(Message):
    """The address at which the first node of a group serves it in a round."""

    round: int
    address: str


@dataclass(frozen=True)
class Measurement:
    """The result of one group of nodes.

    ``problem`` is empty if the collective succeeded; ``wrong``: it returned wrong numbers. ``silent`` are
    members that did not answer at all. Latency is that of one small all-reduce, bandwidth the bus bandwidth
    of a large one: what each link carries.
    """

    group: tuple[int, ...]
    problem: str = ""
    wrong: bool = False
    silent: tuple[int, ...] = ()
    latency_us: float = 0.0
    bandwidth_gbps: float = 0.0


@dataclass(frozen=True)
class Document(Message):
    """All results. ``reach`` maps each node to the nodes that it cannot reach.

    ``silent`` are nodes that joined and then stopped answering. ``master_port`` maps nodes that cannot reach
    MASTER_PORT to the reason; ``master_unnamed`` has those of them that cannot resolve the master's name.
    ``duplicates`` maps ranks that joined twice to the second host, ``foreign`` ranks with an incompatible
    launcher to what differs. ``clock_offsets_s`` is by how much each node's clock was ahead of node 0's when
    it
    joined.
    """

    most_bytes: ClassVar[int] = 4 * _MIB

    endpoints: Mapping[int, Endpoint] = field(default_factory=dict)
    absent: tuple[int, ...] = ()
    duplicates: Mapping[int, str] = field(default_factory=dict)
    foreign: Mapping[int, str] = field(default_factory=dict)
    silent: tuple[int, ...] = ()
    reach: Mapping[int, tuple[Gap, ...]] = field(default_factory=dict)
    master_port: Mapping[int, str] = field(default_factory=dict)
    master_unnamed: tuple[int, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    clock_offsets_s: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class DoctorState(Message):
    """The next stage: wait for nodes, try to reach ``endpoints``, run a round, or read the document.

    ``round`` counts the rounds of collectives, and is -1 before the first.
    """

    most_bytes: ClassVar[int] = 5 * _MIB

    endpoints: Mapping[int, Endpoint] | None = None
    round: int = -1
    groups: tuple[tuple[int, ...], ...] = ()
    document: Document | None = None


PURPOSE = Purpose("doctor", (Endpoint, ReachReport, Share, GroupAddress, DoctorState))


@dataclass(frozen=True)
class PartAnswer(Message):
    """A part's answer to the doctor that started it: a document, or why there is none and what to do."""

    most_bytes: ClassVar[int] = 5 * _MIB

    document: Document | None = None
    failure: str = ""
    hint: str = ""
