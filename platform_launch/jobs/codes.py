"""What a scheduler should do about the launcher's exit codes: one table for manifests and documentation."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from platform_launch.errors import (
    HangError,
    HardwareError,
    InputError,
    InstallationError,
    LaunchError,
    NodesAbsentError,
    NodesDisagreeError,
    TopologyError,
    UnfitNodeError,
    UsageError,
)
from platform_launch.jobs.job import Job
from platform_launch.jobs.manifest import Document
from platform_launch.text import Phrase, joined


@dataclass(frozen=True)
class NodeOutcome:
    """One exit code of a node and its consequence.

    ``ends_job``: another attempt would not help. ``ends_with_spares``: another node would not help either, so
    the job ends even if spares are left.
    """

    family: type[LaunchError]
    meaning: str
    ends_job: bool = False
    ends_with_spares: bool = False

    @property
    def code(self) -> int:
        """The exit code."""
        return self.family.exit_code


OUTCOMES = (
    NodeOutcome(UsageError, "the command is wrong", ends_job=True, ends_with_spares=True),
    NodeOutcome(TopologyError, "the variables are wrong", ends_job=True, ends_with_spares=True),
    NodeOutcome(InputError, "a file is wrong", ends_job=True, ends_with_spares=True),
    NodeOutcome(InstallationError, "something is not installed on this node", ends_job=True),
    NodeOutcome(HardwareError, "a device of this node is broken"),
    NodeOutcome(NodesAbsentError, "another node was lost or late"),
    NodeOutcome(NodesDisagreeError, "this node differs from the others", ends_job=True),
    NodeOutcome(HangError, "the job hung"),
    NodeOutcome(UnfitNodeError, "this node is bad: use another"),
)
"""In the order of their codes."""

STOPPED = 128 + signal.SIGTERM
"""Every node returns this if one was asked to stop, unless all scripts returned 0."""


def fatal(*, spares: bool) -> tuple[int, ...]:
    """Return the codes that end the job at once."""
    return tuple(
        outcome.code for outcome in OUTCOMES if (outcome.ends_with_spares if spares else outcome.ends_job)
    )


def retried(*, spares: bool) -> tuple[int, ...]:
    """Return the codes that count as a failed attempt of the node."""
    return tuple(outcome.code for outcome in OUTCOMES if outcome.code not in fatal(spares=spares))


def table() -> str:
    """Return the table of the documentation, as Markdown."""
    lines = ["| exit code | meaning | without spares | with spares |", "|---|---|---|---|"]
    for outcome in OUTCOMES:
        actions = (
            "ends the job" if ends else "counts as a failed attempt"
            for ends in (outcome.ends_job, outcome.ends_with_spares)
        )
        lines.append(f"| {outcome.code} | {outcome.meaning} | {' | '.join(actions)} |")
    for code, meaning, action in (
        ("any other", "the script failed", "counts as a failed attempt"),
        (STOPPED, "the run was asked to stop", "does not count"),
    ):
        lines.append(f"| {code} | {meaning} | {action} | {action} |")
    return "\n".join(lines)


STOPPED_NOTE = Phrase(
    "If one node is preempted or drained, all nodes of the run stop. They return {stopped}, or 0 if every "
    "script handles SIGTERM and exits with 0.",
    stopped=STOPPED,
)
NOT_COUNTED_NOTE = Phrase(
    "Pods that were preempted or drained (DisruptionTarget) and pods that returned {stopped} are replaced "
    "without counting a failed attempt. If all nodes returned 0, the job is complete.",
    stopped=STOPPED,
)


def notes(job: Job) -> tuple[Phrase, ...]:
    """Return the notes on exit codes."""
    spares = bool(job.may_lose)
    return (
        Phrase(
            "Exit codes {fatal} end the job at once: fix the command, the files or the image first. "
            "{retried} and exit codes of your own program count as failed attempts.",
            fatal=_listed(fatal(spares=spares)),
            retried=_listed(retried(spares=spares)),
        ),
        STOPPED_NOTE,
    )


def pod_failure_policy(job: Job, container: str) -> Document:
    """Return a Job's podFailurePolicy, which needs ``restartPolicy: Never`` (kubernetes.io).

    The rules name the container: the exit code of a sidecar means nothing here.
    """
    spares = bool(job.may_lose)
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {
        "rules": [
            _on_codes("FailJob", fatal(spares=spares), container),
            disrupted,
            _on_codes("Ignore", (STOPPED,), container),
            _on_codes("Count", retried(spares=spares), container),
        ]
    }


def _on_codes(action: str, codes: tuple[int, ...], container: str) -> Document:
    on_codes = {"containerName": container, "operator": "In", "values": list(codes)}
    return {"action": action, "onExitCodes": on_codes}


def _listed(codes: tuple[int, ...]) -> str:
    return joined(codes)
