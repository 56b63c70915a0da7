"""How a run ended: one value that travels from a node through node 0 to all, and its description."""

from __future__ import annotations

from enum import Enum

from platform_launch.events import Event, event, line
from platform_launch.health.finding import NodeHealth
from platform_launch.rendezvous.messages import Message
from platform_launch.rendezvous.ranks import describe_nodes
from platform_launch.rendezvous.restarts import NotAgain
from platform_launch.text import Phrase
from platform_launch.values import dataclass

_MOST_PLACES = 4

# All nodes have stopped three seconds after a failure; it takes up to one second to reach them.
_GRACE_S = 1.5
# Writing flight recorders takes seconds, more on shared storage; without it their evidence is lost with the
# process.
_GPU_GRACE_S = 15.0


class EndKind(str, Enum):
    """What happened to a node, or to its connection."""

    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    VANISHED = "vanished"
    STARTED_ANEW = "started_anew"
    LAUNCHER_KILLED = "launcher_killed"
    LAUNCHER_SILENT = "launcher_silent"
    COORDINATOR_GONE = "coordinator_gone"
    COORDINATOR_SILENT = "coordinator_silent"
    HUNG = "hung"
    LEFT = "left"


_EVENTS = {
    EndKind.FINISHED: "node-finished",
    EndKind.FAILED: "node-failed",
    EndKind.STOPPED: "node-stopped",
    EndKind.VANISHED: "node-vanished",
    EndKind.STARTED_ANEW: "node-started-anew",
    EndKind.LAUNCHER_KILLED: "launcher-killed",
    EndKind.LAUNCHER_SILENT: "launcher-silent",
    EndKind.COORDINATOR_GONE: "coordinator-gone",
    EndKind.COORDINATOR_SILENT: "coordinator-silent",
    EndKind.HUNG: "node-hung",
    EndKind.LEFT: "node-left-early",
}


@dataclass(frozen=True)
class Cause:
    """Why the processes of a node ended, according to its log. ``id`` is the known cause, empty if unknown.

    ``evidence`` are lines of the log; ``lines`` are shown to people and may explain them. ``retry`` is the
    advice of ``why`` about retrying, empty if unknown.
    """

    id: str
    evidence: tuple[str, ...]
    lines: tuple[str, ...]
    retry: str = ""


@dataclass(frozen=True)
class NodeEnding(Message):
    """How the run ended on one node.

    ``exit_code`` is the resulting code of the job. ``stopped_by`` is the signal or reason that stopped this
    node, empty if none did. ``ended_at_s`` is on the node's own clock until node 0 converts it to its own. If
    nodes vanish together, ``ranks`` and ``hosts`` name all, and ``node_rank`` is the first. ``silent_s`` is
    how long nothing was heard or, in a hang, there was no progress. ``health`` is the state of the devices
    afterwards, None if they were not checked.
    """

    kind: EndKind
    node_rank: int
    host: str
    exit_code: int
    cause: Cause | None = None
    stopped_by: str = ""
    ended_at_s: float = 0.0
    silent_s: float = 0.0
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    all_others: bool = False
    health: NodeHealth | None = None

    @property
    def in_good_order(self) -> bool:
        """Whether nothing is broken, so that the processes may use their whole grace time."""
        return self.kind is EndKind.STOPPED


@dataclass(frozen=True)
class UnwellNode:
    """A node whose devices are suspect or bad."""

    node_rank: int
    host: str
    health: NodeHealth

    @property
    def bad(self) -> bool:
        """Whether its health is bad."""
        return self.health.bad


@dataclass(frozen=True)
class RunOutcome(Message):
    """How the run ended for all nodes.

    ``exit_code`` is the job's, 0 if every node finished or one was asked to stop. ``ending`` is what the
    others followed, None if every node finished. ``closed``: node 0 has finished, and nodes that still run
    continue alone. ``replaced`` are the ranks that spares get in the next attempt; the nodes of those in
    ``bad`` are alive, and leave. ``unwell`` are the nodes with unhealthy devices, ``well`` is how many others
    were checked.
    """

    exit_code: int
    ending: NodeEnding | None = None
    restart: bool = False
    not_again: NotAgain | None = None
    closed: bool = False
    replaced: tuple[int, ...] = ()
    bad: tuple[int, ...] = ()
    unwell: tuple[UnwellNode, ...] = ()
    well: int = 0

    @property
    def stopped(self) -> bool:
        """Whether no node failed, and a signal to one of them stopped all."""
        return self.ending is not None and self.ending.in_good_order

    @property
    def node_0_is_lost(self) -> bool:
        """Whether node 0 can no longer report for all."""
        kinds = (EndKind.COORDINATOR_GONE, EndKind.COORDINATOR_SILENT)
        return self.ending is not None and self.ending.kind in kinds

    @property
    def first_failed(self) -> int | None:
        """The rank of the node whose failure the others followed."""
        return None if self.ending is None or self.stopped else self.ending.node_rank


def describe_ending(ending: NodeEnding) -> str:
    """Describe in one line how the run ended on a node."""
    return line(ending_event(ending))


def ending_event(ending: NodeEnding) -> Event:
    """Return how the run ended on a node, as an event."""
    shown = list(ending.hosts[:_MOST_PLACES]) or [ending.host]
    return event(
        _EVENTS[ending.kind],
        node=ending.node_rank,
        host=ending.host,
        exit_code=ending.exit_code,
        cause=ending.cause.id if ending.cause is not None else "",
        signal=ending.stopped_by,
        nodes=describe_nodes(ending.ranks or (ending.node_rank,)),
        ranks=list(ending.ranks),
        hosts=shown,
        silent_s=ending.silent_s,
        remark=Phrase(", so that node 0 itself is probably the one that is cut off")
        if ending.all_others
        else "",
    )


def quote_event(ending: NodeEnding) -> tuple[Event, list[str]] | None:
    """Return the cause in that node's log, as an event and its lines; None if unknown."""
    if ending.cause is None or not ending.cause.lines:
        return None
    quoted, are_last_words = list(ending.cause.lines), ending.cause.lines == ending.cause.evidence
    shown = [f"  | {text}" for text in quoted] if are_last_words else quoted
    return event("node-quoted", node=ending.node_rank, lines=quoted), shown


def stop_grace_s(gpus: int) -> float:
    """Return how long processes may take to exit after another node failed, on a node with so many GPUs."""
    return _GPU_GRACE_S if gpus else _GRACE_S
