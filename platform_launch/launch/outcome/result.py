"""The result of a run on this node, and the events that report it."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from platform_launch.console import Console
from platform_launch.events import Event, event, line
from platform_launch.launch.saves import Saves
from platform_launch.supervise import Outcome
from platform_launch.text import Phrase

if TYPE_CHECKING:
    from platform_launch.health.finding import NodeHealth
    from platform_launch.launch.statistics.cost import RunCost
    from platform_launch.launch.training_command import NodePlace
    from platform_launch.rendezvous.ending import RunOutcome, UnwellNode
    from platform_launch.why.answer.verdict import Verdict


@dataclass(frozen=True)
class Result:
    """How a run ended on this node.

    ``run`` is the outcome of the job, None for a single node without devices. ``restarts`` counts attempts
    after the first. ``first_failed`` is the rank of the node that failed first, ``place`` this node's place
    at the end, ``cost`` its use of time, ``health`` the state of its devices after a failure, and ``saves``
    what is known about its checkpoints. ``nodes`` is how many nodes took part in each attempt of this node.
    """

    exit_code: int
    outcome: Outcome
    place: NodePlace
    run: RunOutcome | None = None
    restarts: int = 0
    first_failed: int | None = None
    cost: RunCost | None = None
    health: NodeHealth | None = None
    saves: Saves = field(default_factory=Saves)
    nodes: tuple[int, ...] = ()


class SpareNotNeededError(Exception):
    """The job has ended, and this spare took no part in it."""

    def __init__(self, outcome: RunOutcome) -> None:
        super().__init__()
        self.outcome = outcome


def was_failure(outcome: Outcome) -> bool:
    """Return whether processes failed, here or elsewhere, rather than being asked to stop."""
    return outcome.exit_code != 0 and outcome.stopped_by not in signal.Signals.__members__


def report_outcome(
    run: RunOutcome, console: Console, *, has_verdict: bool = False, in_full: bool = True
) -> list[str]:
    """Report how the run ended for all nodes, unless every node finished; return the lines.

    The cause in the failed node's log is repeated unless this node ``has_verdict`` of its own. Without
    ``in_full``, a quiet screen leaves the cause to node 0.
    """
    from platform_launch.rendezvous.ending import ending_event, quote_event
    from platform_launch.rendezvous.restarts import NotAgainKind, describe_not_again

    events: list[tuple[Event, list[str]]] = []
    if run.ending is not None:
        events.append((ending_event(run.ending), []))
    events += [(_unwell(node), []) for node in run.unwell]
    if run.well and not run.stopped:
        events.append((event("nodes-well", nodes=run.well), []))
    not_again = run.not_again
    if events and not_again is not None and not_again.kind is not NotAgainKind.NOT_ASKED_FOR:
        values = {"kind": not_again.kind.value, "max_restarts": not_again.max_restarts}
        events.append((event("not-restarted", reason=describe_not_again(not_again), **values), []))
    quoted = quote_event(run.ending) if run.ending is not None and not has_verdict else None
    if quoted is not None:  # last: it has the root cause
        events.append(quoted)
    for number, (one, lines) in enumerate(events):
        of_node_0 = number > 0 or has_verdict
        console.report(one, lines, on_screen=() if of_node_0 and not in_full else None)
    return [text for one, lines in events for text in lines or [line(one)]]


def _unwell(node: UnwellNode) -> Event:
    return event(
        "node-bad" if node.bad else "node-suspect",
        node=node.node_rank,
        host=node.host,
        grade=node.health.grade.value,
        reasons=list(node.health.reasons),
    )


def with_devices(verdict: Verdict | None, run: RunOutcome | None) -> Verdict | None:
    """Return the verdict on the log, corrected by the devices: a bad node overrides the log."""
    bad = [node for node in (run.unwell if run is not None else ()) if node.bad]
    if verdict is None or not bad:
        return verdict
    reason = Phrase(
        "node {rank} ({host}) is bad: {reason}",
        rank=bad[0].node_rank,
        host=bad[0].host,
        reason=bad[0].health.reasons[0],
    )
    return replace(verdict, retry="another_node", retry_reason=reason)


def ending(outcome: Outcome, exit_code: int, followed: int | None = None) -> Event:
    """Return the event for the end of the processes. ``followed`` is the other node that failed, if any.

    ``exit_code`` is the launch's: the code of stopped processes only shows which signal they got.
    """
    values: dict[str, object] = {
        "exit_code": outcome.exit_code if outcome.stopped_by is None else exit_code,
        "duration_s": round(outcome.duration_s, 3),
    }
    if values["exit_code"] == 0:
        return event("training-finished", **values)
    if outcome.stopped_by is not None and followed is not None:
        return event("training-followed", node=followed, **values)
    if outcome.stopped_by is not None:
        return event("training-stopped", reason=outcome.stopped_by, **values)
    if outcome.signal is not None:
        return event("training-killed", signal=outcome.signal, **values)
    return event("training-failed", **values)
