"""What the nodes of a doctor tell each other, and what came out of it."""

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
    """What one node's part is asked to do.

    ``address`` is where the other nodes find this one, ``mtu`` that of its interface, 0 where it is not
    known. ``backend`` is ``gloo``, ``nccl`` or ``jax``; ``workers`` the number of processes of this node that
    take part in a collective. The limits are in seconds: for all nodes to come, and for one collective from
    its start to its end.
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
    meet_limit_s: float
    collective_limit_s: float


@dataclass(frozen=True)
class Endpoint(Message):
    """Where a node is found. ``port`` is one it listens on while the nodes try to reach each other."""

    host: str
    address: str
    port: int
    mtu: int = 0


@dataclass(frozen=True)
class Gap:
    """Nodes that one node does not reach, all for the same reason: of a thousand behind a firewall one line.

    ``ranges`` are the first and the last of those whose ranks follow each other; ``only_large``: small
    packets reach them. Raises ValueError.
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
    """Which nodes one node does not reach; ``master_port``: why it does not reach MASTER_PORT, else empty.

    ``master_unnamed`` where that is because MASTER_ADDR is a name without an address there.
    """

    gaps: tuple[Gap, ...]
    master_port: str
    master_unnamed: bool


@dataclass(frozen=True)
class Share(Message):
    """What one node says of a collective: of which round, and see :class:`Measurement`."""

    round: int
    problem: str = ""
    wrong: bool = False
    latency_us: float = 0.0
    bandwidth_gbps: float = 0.0


@dataclass(frozen=True)
class GroupAddress(Message):
    """Where the first node of a group serves it in a round."""

    round: int
    address: str


@dataclass(frozen=True)
class Measurement:
    """What one group of nodes found.

    ``problem`` is empty when the collective ended well; ``wrong`` tells that it ended with wrong numbers.
    ``silent`` are members that did not answer at all. Latency is that of one small all-reduce, bandwidth the
    bus bandwidth of a large one: what each link carries.
    """

    group: tuple[int, ...]
    problem: str = ""
    wrong: bool = False
    silent: tuple[int, ...] = ()
    latency_us: float = 0.0
    bandwidth_gbps: float = 0.0


@dataclass(frozen=True)
class Document(Message):
    """All that came out. ``reach`` maps each node to the nodes it does not reach.

    ``silent`` are nodes that came and then stopped answering; ``master_port`` maps the nodes that do not get
    through to MASTER_PORT to the reason, ``master_unnamed`` holds those of them on which the master's name
    has no address; ``duplicates`` maps the ranks that came twice to the second host, and ``foreign`` those
    whose launchers speak another protocol to what differs. ``clock_offsets_s`` is by how much each node's
    clock was ahead of that of node 0 when it came.
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
    """What comes next: wait for nodes, try to reach ``endpoints``, run a round, or read the document.

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
    """What a part says to the doctor that started it: a document, or why there is none and what to do."""

    most_bytes: ClassVar[int] = 5 * _MIB

    document: Document | None = None
    failure: str = ""
    hint: str = ""
