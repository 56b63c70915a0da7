"""What a launcher gives its part in the rendezvous of a run, and what it hears from there."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.ending import NodeEnding, RunOutcome
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.messages import ConsoleLine
from platform_launch.rendezvous.run.places import Places
from platform_launch.rendezvous.run.state import StopAll
from platform_launch.rendezvous.run.texts import AnswersReceived, RequestReceived, SharedTexts
from platform_launch.rendezvous.verdict import RunRefusal
from platform_launch.text import Phrase, one_line


@dataclass(frozen=True)
class RunTask:
    """Where the nodes of a run meet, and what this one brings.

    ``ports`` are those of the rendezvous, in their order. ``grace_s`` is how long the job's processes may
    take to end on SIGTERM. Of the nodes that were started ``spares`` wait without a rank, and ``spare`` is
    set if this is one; node 0 gives the ranks in ``replaced`` to spares at once. After ``max_restarts`` a
    spare is needed no more. ``by_network``: ranks follow the network, not the platform. ``places`` is where
    a run that has lost node 0 may go on, and ``lost`` says that this one has.
    """

    node: Fingerprint
    master_addr: str
    master_port: int
    ports: tuple[int, ...]
    roll_call_timeout_s: float
    node_timeout_s: float
    grace_s: float
    secret: Secret | None = None
    spares: int = 0
    spare: bool = False
    max_restarts: int = 0
    replaced: tuple[int, ...] = ()
    by_network: bool = False
    places: Places = field(default_factory=Places)
    lost: bool = False

    @property
    def leads(self) -> bool:
        """Whether this is node 0."""
        return self.node.node_rank == 0 and not self.spare

    @property
    def mark(self) -> str:
        """What tells this job's rendezvous from another's on the same hosts."""
        return self.places.mark(self.master_port)


@dataclass(frozen=True)
class OwnProcesses:
    """What the rendezvous observes of the processes of this node.

    ``still_s()`` is for how long nothing has moved there, None if nobody can tell; ``tail()`` is the end of
    what they wrote.
    """

    still_s: Callable[[], float | None] = lambda: None
    tail: Callable[[], bytes] = bytes


@dataclass(frozen=True)
class AllHere:
    """All nodes are there and agree, but for what is warned of.

    ``restarts_used`` is the highest number that any of them counts, ``node_rank`` the rank of this node: a
    spare was given it, or ranks were ``reordered``. ``host`` and ``port`` are where they met.
    """

    nnodes: int
    restarts_used: int
    warnings: tuple[str, ...]
    node_rank: int
    host: str
    port: int
    reordered: bool = False


@dataclass(frozen=True)
class Moved:
    """The nodes that gathered here meet at ``host``; they have seen so many restarts."""

    host: str
    restarts_used: int


@dataclass(frozen=True)
class Standby:
    """This node waits as a spare, while others run or gather."""


@dataclass(frozen=True)
class Settled:
    """The run is over on all nodes, or, if the outcome is ``closed``, for node 0."""

    outcome: RunOutcome


@dataclass(frozen=True)
class RendezvousLost:
    """Node 0 cannot be reached any more."""

    ending: NodeEnding


RunNews = (
    ConsoleLine
    | RunRefusal
    | AllHere
    | Moved
    | Standby
    | StopAll
    | Settled
    | RendezvousLost
    | SharedTexts
    | RequestReceived
    | AnswersReceived
)


def fault(error: BaseException) -> ConsoleLine:
    """Say what went wrong in the launcher itself, and where, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    problem = one_line(f"{type(error).__name__}: {error}{where}")
    text = Phrase("the rendezvous of this node failed: {problem}", problem=problem)
    return ConsoleLine("ERROR", text, "rendezvous-fault")
