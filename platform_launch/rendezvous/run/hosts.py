"""Where the rendezvous of a run may be: on node 0 and, once that is lost, on a host that started as a spare.

At most as many nodes and spares may be lost as there are spares, or too few are left to train. So node 0 and
all spares are never lost together, and no other host needs to be tried.
"""

from __future__ import annotations

import hashlib

from platform_launch.rendezvous.reach import is_local_address, resolve
from platform_launch.rendezvous.run.state import RunPhase, RunState
from platform_launch.values import dataclass

_NAME_LIMIT_S = 3.0


@dataclass(frozen=True)
class RendezvousHosts:
    """``hosts`` are those of node 0 and of the spares, in order of preference; ``own`` is the index of this
    node's host. They are empty if the job cannot move; ``why_not`` is the reason. ``job`` is the job's id and
    whatever else distinguishes it from others on the same hosts.
    """

    hosts: tuple[str, ...] = ()
    own: int | None = None
    why_not: str = ""
    job: str = ""

    def __post_init__(self) -> None:
        if self.own is not None and not 0 <= self.own < len(self.hosts):
            raise ValueError(f"own={self.own}: expected one of {len(self.hosts)} hosts")

    @property
    def own_host(self) -> str | None:
        """The host where this node may open the rendezvous; None if it has none, or the name is another's."""
        if self.own is None:
            return None
        host = self.hosts[self.own]
        found = resolve(host, _NAME_LIMIT_S).found
        return host if any(is_local_address(family, address) for family, address in found) else None

    def mark(self, master_port: int) -> str:
        """Return what distinguishes this job's rendezvous from another's on the same hosts.

        A job that cannot move is identified by its MASTER_PORT, which no two jobs on one host share.
        """
        # Node 0 may be known by several names.
        names = "\0".join((self.job, *self.hosts[1:])) if self.hosts else ""
        return hashlib.sha256(f"{master_port}\0{names}".encode()).hexdigest()[:16]


def is_open_to(state: RunState, restarts: int) -> bool:
    """Return whether a node that has seen so many restarts may join: nodes gather, or a newer run began.

    A run of an earlier attempt is led by a node 0 that was stopped or cut off and does not know it yet.
    """
    return state.phase is RunPhase.WAITING or _has_begun(state, restarts)


def must_yield(mine: int, other: int, state: RunState, restarts: int) -> bool:
    """Return whether the nodes that gather at host ``mine`` must move to ``other``, whose state this is."""
    return _has_begun(state, restarts) or (state.phase is RunPhase.WAITING and other < mine)


def _has_begun(state: RunState, restarts: int) -> bool:
    return state.phase in (RunPhase.RUNNING, RunPhase.ENDED) and state.restarts_used >= restarts
