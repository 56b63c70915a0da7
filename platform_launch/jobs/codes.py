"""What a scheduler should do about our exit codes: mend the job, or try again."""

from __future__ import annotations

from platform_launch.errors import (
    HardwareError,
    InputError,
    InstallationError,
    NodesAbsentError,
    NodesDisagreeError,
    TopologyError,
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

TRY_AGAIN = tuple(sorted((HardwareError.exit_code, NodesAbsentError.exit_code)))
"""A broken device, or another node that was lost or late: another attempt may go well."""

CODE_NOTES = f"""\
- Exit codes {", ".join(map(str, MEND_THE_JOB))} say that the job must be mended: they end it at once.
  {" and ".join(map(str, TRY_AGAIN))} (a broken device; another node lost or late) and the training's own
  count as failed attempts.
"""


def pod_failure_policy(*, ignore_disruptions: bool) -> Document:
    """Return a Job's podFailurePolicy. Needs ``restartPolicy: Never`` (kubernetes.io, "Pod failure policy").

    ``ignore_disruptions``: pods that were preempted or drained are replaced and not counted.
    """
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {
        "rules": [
            _on_codes("FailJob", MEND_THE_JOB),
            *([disrupted] if ignore_disruptions else []),
            _on_codes("Count", TRY_AGAIN),
        ]
    }


def _on_codes(action: str, codes: tuple[int, ...]) -> Document:
    return {"action": action, "onExitCodes": {"operator": "In", "values": list(codes)}}
