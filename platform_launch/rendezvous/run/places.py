"""Where the nodes of a run may meet: at node 0, and once it is lost, at a host that was started as a spare.

Of nodes and spares together at most as many as there are spares may be lost, else too few are left to train:
so node 0 and the spares cannot all be among them, and no other host need ever be asked.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from platform_launch.rendezvous.reach import is_here, resolve
from platform_launch.rendezvous.run.state import RunPhase, RunState

_NAME_LIMIT_S = 3.0


@dataclass(frozen=True)
class Places:
    """``hosts`` are node 0's and those of the spares, in the order in which they count, and ``own`` is which
    of them this node was started on. They are empty where the job cannot move, and ``stays`` says why.
    ``job`` is its id, and whatever else tells it from others on the same hosts.
    """

    hosts: tuple[str, ...] = ()
    own: int | None = None
    stays: str = ""
    job: str = ""

    def __post_init__(self) -> None:
        if self.own is not None and not 0 <= self.own < len(self.hosts):
            raise ValueError(f"own={self.own}: expected one of {len(self.hosts)} places")

    @property
    def own_host(self) -> str | None:
        """The place that this node may open; None where it has none, or where its name leads elsewhere."""
        if self.own is None:
            return None
        host = self.hosts[self.own]
        found = resolve(host, _NAME_LIMIT_S).found
        return host if any(is_here(family, address) for family, address in found) else None

    def mark(self, master_port: int) -> str:
        """Return what tells this job's rendezvous from another's on the same hosts.

        A job that cannot move is known by its MASTER_PORT, which no two jobs on one host share.
        """
        # Node 0 may be known by several names.
        names = "\0".join((self.job, *self.hosts[1:])) if self.hosts else ""
        return hashlib.sha256(f"{master_port}\0{names}".encode()).hexdigest()[:16]


def is_open_to(state: RunState, restarts: int) -> bool:
    """Tell whether a node that has seen so many restarts may come: to gather, or to a run that began since.

    A run of an earlier start is led by a node 0 that was stopped or cut off, and does not know it yet.
    """
    return state.phase is RunPhase.WAITING or _has_begun(state, restarts)


def must_yield(mine: int, other: int, state: RunState, restarts: int) -> bool:
    """Tell whether the nodes that gather at the place ``mine`` shall go to ``other``, whose state this is."""
    return _has_begun(state, restarts) or (state.phase is RunPhase.WAITING and other < mine)


def _has_begun(state: RunState, restarts: int) -> bool:
    return state.phase in (RunPhase.RUNNING, RunPhase.ENDED) and state.restarts_used >= restarts
