"""What the nodes of a run and node 0 send each other. How a node's processes ended is described in
``ending``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import ClassVar

from platform_launch.rendezvous.ending import NodeEnding, RunOutcome
from platform_launch.rendezvous.messages import Message
from platform_launch.rendezvous.purpose import Purpose
from platform_launch.rendezvous.restarts import NotAgain
from platform_launch.rendezvous.run.texts import RelayedText, SharedText
from platform_launch.rendezvous.verdict import RunRefusal
from platform_launch.values import dataclass


class RunPhase(str, Enum):
    """How far the nodes have come."""

    WAITING = "waiting"
    REFUSED = "refused"
    RUNNING = "running"
    ENDED = "ended"
    MOVED = "moved"  # to another place, before the run began


@dataclass(frozen=True)
class RunState(Message):
    """The state of the run, as node 0 publishes it.

    ``absent`` are the ranks that have not joined; ``last_seen_s`` is how long ago those that had joined were
    last seen. ``ending`` is the first reason to stop. ``reordered``: ranks were reassigned in the network's
    order.
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
    """The last lines of a node's output, kept in case the node vanishes."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class NodeProgress(Message):
    """How long a node's processes have made no progress; None if unknown."""

    still_s: float | None


@dataclass(frozen=True)
class StopAll(Message):
    """All nodes must stop, because of what happened to one of them."""

    ending: NodeEnding


@dataclass(frozen=True)
class TrainingEnded(Message):
    """How the processes of a node ended. ``not_again`` is only used of node 0; None: restart."""

    ending: NodeEnding
    not_again: NotAgain | None


# Launchers exchange more in texts, and ignore those that they cannot read.
PURPOSE = Purpose(
    "run",
    (
        *(RunState, LogExcerpt, NodeProgress, StopAll, TrainingEnded),
        *(RelayedText, SharedText),
    ),
)
