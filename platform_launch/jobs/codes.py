"""What a scheduler should do about our exit codes: mend the job, try again, or go on as if nothing was."""

from __future__ import annotations

import signal

from platform_launch.errors import (
    HangError,
    HardwareError,
    InputError,
    InstallationError,
    NodesAbsentError,
    NodesDisagreeError,
    TopologyError,
    UnfitNodeError,
    UsageError,
)
from platform_launch.jobs.manifest import Document

MEND_THE_JOB = tuple(
    sorted(
        family.exit_code
        for family in (UsageError, TopologyError, InputError, InstallationError, NodesDisagreeError)
    )
)
"""Starting again changes nothing: the command, the variables, the files or the image must change."""

TRY_AGAIN = tuple(
    sorted(family.exit_code for family in (HardwareError, NodesAbsentError, HangError, UnfitNodeError))
)
"""A broken device, another node that was lost or late, a hang: another attempt may go well."""

TOLD_TO_END = 128 + signal.SIGTERM
"""Every node of a run returns it when any of them was told to end: preempted, evicted, drained."""

CODE_NOTES = f"""\
- Exit codes {", ".join(map(str, MEND_THE_JOB))} say that the job must be mended: they end it at once.
  {", ".join(map(str, TRY_AGAIN))} (a broken device; another node lost or late; a hang) and the training's own
  count as failed attempts. {UnfitNodeError.exit_code} names a node that the job should not be put on again.
"""

NOT_COUNTED_NOTES = f"""\
- A preempted or drained pod (DisruptionTarget) is replaced without counting, and so are its peers:
  all nodes of a run that was told to end return {TOLD_TO_END}.
"""


def pod_failure_policy() -> Document:
    """Return a Job's podFailurePolicy, which needs ``restartPolicy: Never`` (kubernetes.io)."""
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {
        "rules": [
            _on_codes("FailJob", MEND_THE_JOB),
            disrupted,
            _on_codes("Ignore", (TOLD_TO_END,)),
            _on_codes("Count", TRY_AGAIN),
        ]
    }


def _on_codes(action: str, codes: tuple[int, ...]) -> Document:
    return {"action": action, "onExitCodes": {"operator": "In", "values": list(codes)}}
