"""How this node came to its end, as the other nodes are told."""

from __future__ import annotations

from dataclasses import replace

from platform_launch.console.languages import rank_words
from platform_launch.errors import HangError
from platform_launch.health.finding import NodeHealth
from platform_launch.launch.training_output import TrainingOutput
from platform_launch.observe.hang import HangFinding
from platform_launch.observe.monitor import HangReport
from platform_launch.observe.steps import highest_step
from platform_launch.observe.words import english
from platform_launch.rendezvous.ending import Cause, EndKind, NodeEnding
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.restarts import FailedRun, is_young
from platform_launch.supervise import Outcome

# Of what is said of a hang, what a job's end repeats.
_MOST_LINES = 8


def of_node(
    node: Fingerprint, kind: EndKind, exit_code: int, cause: Cause | None = None, stopped_by: str = ""
) -> NodeEnding:
    """Return the end of a node."""
    return NodeEnding(kind, node.node_rank, node.place, exit_code, cause, stopped_by)


def of_training(
    node: Fingerprint, outcome: Outcome, output: TrainingOutput, health: NodeHealth | None
) -> NodeEnding:
    """Return the end of a training that was told to stop, failed or finished, with its cause."""
    kind = EndKind.FINISHED
    if outcome.stopped_by is not None:
        kind = EndKind.STOPPED
    elif outcome.exit_code:
        kind = EndKind.FAILED
    cause = output.why() if outcome.exit_code else None
    if cause is not None and not is_young(FailedRun(highest_step(output.text()), outcome.duration_s)):
        cause = replace(cause, retry="")  # it went well for long: a restart brings it further
    ending = of_node(node, kind, outcome.exit_code, cause, outcome.stopped_by or "")
    return replace(ending, health=health)


def _lines(finding: HangFinding) -> list[str]:
    """Return what is known of a hang in this process's language; lines of stacks stay as they are."""
    below = (
        f"  {one if isinstance(one, str) else rank_words([one], english(one))}" for one in finding.details()
    )
    return [rank_words(finding.headlines(), finding.headline()), *below]


def of_hang(node: Fingerprint, report: HangReport) -> NodeEnding:
    """Return the end of a training that hangs, at the place of who is to blame for it."""
    cause = Cause("hang", (), tuple(_lines(report.finding)[:_MOST_LINES]))
    ending = replace(of_node(node, EndKind.HUNG, HangError.exit_code, cause), silent_s=report.still_s)
    culprit = next(iter(report.finding.culprits), None)
    if culprit is not None and culprit.node_rank is not None:
        ending = replace(ending, node_rank=culprit.node_rank, host=culprit.host)
    return ending
