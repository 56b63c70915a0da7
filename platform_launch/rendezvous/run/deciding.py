"""What the end of a run on all nodes means for the job: its cause, its exit code, and a restart. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from platform_launch.health.finding import Grade
from platform_launch.rendezvous.ending import EndKind, NodeEnding, RunOutcome, UnwellNode
from platform_launch.rendezvous.first_failure import blames_others, first_failure
from platform_launch.rendezvous.restarts import NotAgain, NotAgainKind

# The most unhealthy nodes that are named.
MOST_UNWELL = 32


def decide(
    ending: NodeEnding,
    reports: Mapping[int, NodeEnding],
    rank_of: Mapping[str, int],
    vanished: NodeEnding | None,
    *,
    lost: Sequence[int],
    spares: int,
    not_again: NotAgain | None,
    may_restart: bool,
) -> RunOutcome:
    """Return the outcome of a run that all nodes were asked to stop for ``ending``.

    ``reports`` are the endings of the nodes, by rank; ``rank_of`` maps an address to a rank. ``vanished`` is
    set if nodes that did not report are silent too. ``lost`` are the ranks of all that did not report, which
    are the first to need ``spares``; each node that the job can continue without counts as one. ``not_again``
    is why node 0 wants no restart.
    """
    if ending.in_good_order:
        return RunOutcome(_stopped_code(ending, reports.values()), ending)
    first = first_failure(list(reports.values()), rank_of)
    stopped = next((report for report in reports.values() if _was_stopped(report)), None)
    if stopped is not None and (first is None or blames_others(first)):
        return RunOutcome(_stopped_code(stopped, reports.values()), stopped)
    if vanished is not None and (first is None or blames_others(first)):
        # Its peers lose their connections before node 0 misses its heartbeat.
        ending = vanished
    elif first is not None and ending.kind is EndKind.FAILED:
        ending = first
    unwell = _unwell(reports)
    well = sum(report.health is not None for report in reports.values()) - len(unwell)
    bad = [node.node_rank for node in unwell if node.bad]
    left_out = [rank for rank in sorted(bad) if rank][: max(0, spares - len(lost))]
    not_again = not_again or no_use(ending, bad, left_out)
    restart = may_restart and not_again is None
    return RunOutcome(
        ending.exit_code,
        ending,
        restart,
        not_again,
        replaced=(*lost, *left_out) if restart else (),
        bad=tuple(left_out) if restart else (),
        unwell=unwell[:MOST_UNWELL],
        well=well,
    )


def no_use(ending: NodeEnding, bad: Sequence[int], replaced: Sequence[int]) -> NotAgain | None:
    """Return why a restart is pointless: a bad node stays, or the job must be fixed first; else None."""
    if set(bad) - set(replaced):
        return NotAgain(NotAgainKind.BAD_NODE)
    if not bad and ending.cause is not None and ending.cause.retry == "no":
        return NotAgain(NotAgainKind.JOB)
    return None


def _unwell(reports: Mapping[int, NodeEnding]) -> tuple[UnwellNode, ...]:
    """Return the nodes with unhealthy devices, bad ones first."""
    found = [
        UnwellNode(
            rank, report.host, replace(report.health, findings=())
        )  # its reasons are enough for others
        for rank, report in sorted(reports.items())
        if report.health is not None and report.health.grade is not Grade.HEALTHY
    ]
    return tuple(sorted(found, key=lambda node: not node.bad))


def _was_stopped(report: NodeEnding) -> bool:
    """Return whether a signal to this node itself ended its processes."""
    return report.kind is EndKind.STOPPED and report.stopped_by in signal.Signals.__members__


def _stopped_code(ending: NodeEnding, reports: Iterable[NodeEnding]) -> int:
    """Return the exit code of a job that a signal ended: 0 if all processes exited with 0.

    It is the same on all nodes, however each process reacted to the signal or to its lost peers.
    """
    if ending.stopped_by not in signal.Signals.__members__:
        return 0
    return 128 + signal.Signals[ending.stopped_by] if any(report.exit_code for report in reports) else 0
