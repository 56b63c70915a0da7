"""What a launcher passes to the rendezvous of a run, and the news it receives."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import field
from pathlib import Path

from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.ending import NodeEnding, RunOutcome
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.messages import ConsoleLine
from platform_launch.rendezvous.run.hosts import RendezvousHosts
from platform_launch.rendezvous.run.state import StopAll
from platform_launch.rendezvous.run.texts import AnswersReceived, RequestReceived, SharedTexts
from platform_launch.rendezvous.verdict import RunRefusal
from platform_launch.text import Phrase, one_line
from platform_launch.values import dataclass


@dataclass(frozen=True)
class RunTask:
    """Where the rendezvous of a run is, and what this node contributes.

    ``ports`` are those of the rendezvous, in the order to try. ``grace_s`` is how long the job's processes
    may take to exit after SIGTERM. ``spares`` of the nodes wait without a rank; ``spare`` is set if this is
    one. Node 0 assigns the ranks in ``replaced`` to spares at once. After ``max_restarts`` no spare is needed
    any more. A restart needs ``min_nodes``, None: all; ``trained`` of them took part in the attempt before.
    ``by_network``: ranks follow the network, not the platform. ``rendezvous_hosts`` is where a
    run that lost node 0 may continue; ``lost`` is set if it has lost it.
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
    min_nodes: int | None = None
    trained: int | None = None
    by_network: bool = False
    rendezvous_hosts: RendezvousHosts = field(default_factory=RendezvousHosts)
    lost: bool = False

    @property
    def leads(self) -> bool:
        """Whether this is node 0."""
        return self.node.node_rank == 0 and not self.spare

    @property
    def mark(self) -> str:
        """Distinguishes this job's rendezvous from another's on the same hosts."""
        return self.rendezvous_hosts.mark(self.master_port)


@dataclass(frozen=True)
class OwnProcesses:
    """The processes of this node, as the rendezvous observes them.

    ``still_s()`` is how long they have made no progress, None if unknown; ``tail()`` is the end of their
    output.
    """

    still_s: Callable[[], float | None] = lambda: None
    tail: Callable[[], bytes] = bytes


@dataclass(frozen=True)
class AllJoined:
    """All nodes have joined and agree, except for the ``warnings``.

    ``restarts_used`` is the highest count of any node; ``node_rank`` is this node's rank, which a spare was
    assigned, or which was ``reordered``. ``host`` and ``port`` are those of the rendezvous.
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
    """The nodes that gathered here moved to ``host``, after ``restarts_used`` restarts."""

    host: str
    restarts_used: int


@dataclass(frozen=True)
class Standby:
    """This node waits as a spare while others run or gather."""


@dataclass(frozen=True)
class RunEnded:
    """The run is over on all nodes, or, if the outcome is ``closed``, for node 0."""

    outcome: RunOutcome


@dataclass(frozen=True)
class RendezvousLost:
    """Node 0 cannot be reached any more."""

    ending: NodeEnding


RunNews = (
    ConsoleLine
    | RunRefusal
    | AllJoined
    | Moved
    | Standby
    | StopAll
    | RunEnded
    | RendezvousLost
    | SharedTexts
    | RequestReceived
    | AnswersReceived
)


def fault(error: BaseException) -> ConsoleLine:
    """Describe an error of the launcher itself, and where it happened, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    problem = one_line(f"{type(error).__name__}: {error}{where}")
    text = Phrase("the rendezvous of this node failed: {problem}", problem=problem)
    return ConsoleLine("ERROR", text, "rendezvous-fault")
