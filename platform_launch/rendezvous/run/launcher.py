"""What a launcher and the helper process that stands in the rendezvous for it say to each other.

Each message is a line (``messages.encode``). The same way go a :class:`ConsoleLine` of text for the user,
a ``RunRefusal``, ``StopAll`` and ``TrainingEnded`` (``state``), and ``texts``.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from platform_launch.rendezvous.ending import NodeEnding, RunOutcome
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.messages import MIB, ConsoleLine, Message
from platform_launch.rendezvous.protocol import Seat
from platform_launch.rendezvous.run.places import Places
from platform_launch.rendezvous.run.state import RunState
from platform_launch.text import Phrase, one_line


@dataclass(frozen=True)
class RunSoFar(Message):
    """What node 0's helper knows of a run, for one that goes on in its place; the launcher only keeps it."""

    most_bytes: ClassVar[int] = 2 * MIB

    round: str
    state: RunState
    members: tuple[Seat, ...]
    clock_offsets_s: Mapping[int, float]


# From the launcher.


@dataclass(frozen=True)
class RunTask(Message):
    """Where the nodes meet, and what this one brings.

    ``grace_s`` is how long a training may take to end on SIGTERM. ``rejoining`` is set when the training runs
    already and only its helper process was lost; on node 0 ``so_far`` says then what that one knew.
    ``secret`` is empty where the nodes share none. Of the nodes that were started ``spares`` wait without a
    rank, and ``spare`` is set where this is one; node 0 gives the ranks in ``replaced`` to spares at once.
    After ``max_restarts`` a spare is needed no more. ``places`` is where a run that has lost node 0 may go
    on, and ``lost`` says that this one has.
    """

    most_bytes: ClassVar[int] = 4 * MIB

    node: Fingerprint
    master_addr: str
    master_port: int
    rendezvous_port: int
    roll_call_timeout_s: float
    node_timeout_s: float
    grace_s: float
    log_path: str
    secret: str = field(default="", repr=False)
    rejoining: bool = False
    spares: int = 0
    spare: bool = False
    max_restarts: int = 0
    replaced: tuple[int, ...] = ()
    so_far: RunSoFar | None = None
    places: Places = field(default_factory=Places)
    lost: bool = False

    @property
    def leads(self) -> bool:
        """Whether this is node 0."""
        return self.node.node_rank == 0 and not self.spare


@dataclass(frozen=True)
class LauncherAlive(Message):
    """The launcher lives. ``still_s``: nothing has moved in its training for that long; None: who knows."""

    still_s: float | None = None


# From the helper.


@dataclass(frozen=True)
class HelperAlive(Message):
    """The helper process lives. It says so from when it has imported torch, which may take long."""


@dataclass(frozen=True)
class AllHere(Message):
    """All nodes are there and agree, but for what is warned of.

    ``restarts_used`` is the highest number that any of them counts, ``node_rank`` the place of this node:
    a spare was given it. ``host`` and ``port`` are where they met.
    """

    nnodes: int
    restarts_used: int
    warnings: tuple[str, ...]
    node_rank: int
    host: str
    port: int


@dataclass(frozen=True)
class Moved(Message):
    """The nodes that gathered here meet at ``host``; they have seen so many restarts."""

    host: str
    restarts_used: int


@dataclass(frozen=True)
class Standby(Message):
    """This node waits as a spare, while others train or gather."""


@dataclass(frozen=True)
class Settled(Message):
    """The run is over on all nodes, or, if the outcome is ``closed``, for node 0."""

    most_bytes: ClassVar[int] = RunState.most_bytes  # which holds the outcome for all

    outcome: RunOutcome


@dataclass(frozen=True)
class RendezvousLost(Message):
    """Node 0 cannot be reached any more."""

    ending: NodeEnding


def fault(error: BaseException) -> ConsoleLine:
    """Say what went wrong in the launcher itself, and where, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    problem = one_line(f"{type(error).__name__}: {error}{where}")
    text = Phrase("the rendezvous of this node failed: {problem}", problem=problem)
    return ConsoleLine("ERROR", text, "rendezvous-fault")
