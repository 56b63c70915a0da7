"""What the nodes of a run and node 0 send each other. How a node's processes ended is described in
``ending``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from platform_launch.rendezvous.ending import NodeEnding, RunOutcome
from platform_launch.rendezvous.messages import Message
from platform_launch.rendezvous.purpose import Purpose
from platform_launch.rendezvous.restarts import NotAgain
from platform_launch.rendezvous.run.texts import RelayedText, SharedText
from platform_launch.rendezvous.verdict import RunRefusal


class RunPhase(str, Enum):
    """How far the nodes have come."""

    WAITING = "waiting"
    REFUSED = "refused"
    RUNNING = "running"
    ENDED = "ended"
    MOVED = "moved"  # to another place, before the run began


@dataclass(frozen=True)
class RunState(Message):
    """What node 0 makes of the run so far.

    ``absent`` are the ranks that are not there, ``last_seen_s`` says of those that were how long ago.
    ``ending`` is the first reason to stop. ``reordered``: ranks were given anew, in the network's order.
    """

    most_bytes: ClassVar[int] = 256 * 1024

    phase: RunPhase
    nnodes: int
    absent: tuple[int, ...] = ()
    last_seen_s: Mapping[int, float] = field(default_factory=dict)
    refusal: RunRefusal | None = None
    warnings: tuple[str, ...] = ()
    restarts_used: int = 0
    ending: NodeEnding | None = None
    outcome: RunOutcome | None = None
    reordered: bool = False


@dataclass(frozen=True)
class LogExcerpt(Message):
    """The last lines of a node's training: a node that vanishes cannot say them any more."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class NodeProgress(Message):
    """For how long nothing has moved in a node's training; None where that cannot be told."""

    still_s: float | None


@dataclass(frozen=True)
class StopAll(Message):
    """All trainings must stop, because of what happened to one node."""

    ending: NodeEnding


@dataclass(frozen=True)
class TrainingEnded(Message):
    """How the training of a node ended. ``not_again`` counts where this is node 0; None: restart."""

    ending: NodeEnding
    not_again: NotAgain | None


# Launchers say more to each other in texts; what a launcher cannot read of those, it does without.
PURPOSE = Purpose(
    "run",
    (
        *(RunState, LogExcerpt, NodeProgress, StopAll, TrainingEnded),
        *(RelayedText, SharedText),
    ),
)
