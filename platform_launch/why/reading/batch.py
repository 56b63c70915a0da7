"""Where LSF ran a job, as the report says that it writes when the job has ended."""

from __future__ import annotations

import re
from collections.abc import Sequence

from platform_launch.why.lines.line import NOWHERE, Location

# Between the head of the report and these lines stands the job's script.
LINES_OF_A_REPORT = 400
_ENDS = re.compile(r"(?:TERM_[A-Z_]{2,40}: |Exited with (?:exit code|signal) )")
_HOST = re.compile(rb"\s{0,4}Job was executed on host\(s\) <(?:\d{1,6}\*)?([A-Za-z][\w.-]{0,100})>")
_FURTHER = re.compile(rb"\s{2,80}<(?:\d{1,6}\*)?[A-Za-z][\w.-]{0,100}>")


def tells_of_end(text: str) -> bool:
    """Tell whether a line may be the one of LSF's report that says how the job ended."""
    return _ENDS.match(text) is not None


def job_above(above: Sequence[bytes]) -> tuple[int, Location] | None:
    """Return how far above its report says where the job ran, and where: nowhere if on several hosts.

    None if no report stands there (nearest line first).
    """
    below = b""
    for distance, data in enumerate(above, 1):
        if found := _HOST.match(data):
            return distance, NOWHERE if _FURTHER.match(below) else Location(host=found[1].decode())
        below = data
    return None
