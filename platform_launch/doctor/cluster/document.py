"""What came out of a meeting of all nodes: values that travel as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Task:
    """What one node's part is asked to do.

    ``address`` is where the other nodes find this one. ``backend`` is ``gloo``, ``nccl`` or ``jax``;
    ``workers`` the number of processes of this node that take part in a collective. The limits are in
    seconds: for all nodes to come, and for one collective from its start to its end.
    """

    node_rank: int
    nnodes: int
    host: str
    address: str
    master_addr: str
    master_port: int
    meeting_port: int
    backend: str
    workers: int
    meet_limit_s: float
    collective_limit_s: float

    def to_json(self) -> str:
        """Return the form that is passed on a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Read :meth:`to_json`."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Seat:
    """Where a node sits. ``port`` is one it listens on while the nodes try to reach each other."""

    host: str
    address: str
    port: int


@dataclass(frozen=True)
class Outcome:
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
class Document:
    """The whole meeting. ``reach`` maps each node to the nodes it does not reach, and why.

    ``silent`` are nodes that came and then stopped answering; ``master_port`` maps the nodes that do not get
    through to MASTER_PORT to the reason; ``duplicates`` the ranks that came twice to the second host.
    """

    seats: Mapping[int, Seat] = field(default_factory=dict)
    absent: tuple[int, ...] = ()
    duplicates: Mapping[int, str] = field(default_factory=dict)
    silent: tuple[int, ...] = ()
    reach: Mapping[int, Mapping[int, str]] = field(default_factory=dict)
    master_port: Mapping[int, str] = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()

    def to_json(self) -> str:
        """Return the form that travels."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Document:
        """Read :meth:`to_json`."""
        values: dict[str, Any] = json.loads(text)
        return cls(
            seats={int(rank): Seat(**seat) for rank, seat in values["seats"].items()},
            absent=tuple(values["absent"]),
            duplicates=_by_rank(values["duplicates"]),
            silent=tuple(values["silent"]),
            reach={int(rank): _by_rank(found) for rank, found in values["reach"].items()},
            master_port=_by_rank(values["master_port"]),
            outcomes=tuple(
                Outcome(**{**o, "group": tuple(o["group"]), "silent": tuple(o["silent"])})
                for o in values["outcomes"]
            ),
        )


def _by_rank(values: Mapping[str, str]) -> dict[int, str]:
    return {int(rank): text for rank, text in values.items()}
