"""What the end of a training on all nodes means for the job: its cause and code, and another start. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from platform_launch.health.finding import Grade
from platform_launch.rendezvous.ending import EndKind, NodeEnding, RunOutcome, UnwellNode
from platform_launch.rendezvous.first_failure import blames_others, first_failure
from platform_launch.rendezvous.restarts import NotAgain, NotAgainKind

# Of many nodes that are not well, so many are named.
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
    """Return what comes of a run that all were told to end for ``ending``.

    ``reports`` are how it ended on each node, by rank, and ``rank_of`` tells a node by its address.
    ``vanished`` is set where nodes that report nothing are silent too. ``lost`` are the ranks of all that
    report nothing, which need the ``spares`` first. ``not_again`` is why node 0 wants no other start.
    """
    if ending.in_good_order:
        return RunOutcome(_stopped_code(ending, reports.values()), ending)
    first = first_failure(list(reports.values()), rank_of)
    stopped = next((report for report in reports.values() if _was_stopped(report)), None)
    if stopped is not None and (first is None or blames_others(first)):
        return RunOutcome(_stopped_code(stopped, reports.values()), stopped)
    if vanished is not None and (first is None or blames_others(first)):
        # Its partners were quicker to lose their connections than node 0 is to miss its heartbeat.
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
    """Return why the same nodes need not try again: one is bad and stays, or the job must be mended first."""
    if set(bad) - set(replaced):
        return NotAgain(NotAgainKind.BAD_NODE)
    if not bad and ending.cause is not None and ending.cause.retry == "no":
        return NotAgain(NotAgainKind.JOB)
    return None


def _unwell(reports: Mapping[int, NodeEnding]) -> tuple[UnwellNode, ...]:
    """Return the nodes whose devices are not well, the bad ones first."""
    found = [
        UnwellNode(rank, report.host, replace(report.health, findings=()))  # its reasons say it to others
        for rank, report in sorted(reports.items())
        if report.health is not None and report.health.grade is not Grade.HEALTHY
    ]
    return tuple(sorted(found, key=lambda node: not node.bad))


def _was_stopped(report: NodeEnding) -> bool:
    """Tell whether a signal to this very node ended its training."""
    return report.kind is EndKind.STOPPED and report.stopped_by in signal.Signals.__members__


def _stopped_code(ending: NodeEnding, reports: Iterable[NodeEnding]) -> int:
    """Return the code of a job that a signal ended: 0 where every training took that for a good end.

    It is the same on all nodes, whatever each training made of the signal or of its lost partners.
    """
    if ending.stopped_by not in signal.Signals.__members__:
        return 0
    return 128 + signal.Signals[ending.stopped_by] if any(report.exit_code for report in reports) else 0
