"""Lines of a training that continues, that succeeded, or that cannot continue."""

from __future__ import annotations

import re
from functools import lru_cache

# What a training prints about its steps; a few may come before all of its tasks have ended.
_PROGRESS = re.compile(
    rb"(?i)\b(?:steps?|epochs?|iter(?:ation)?s?|batch)\b\W{0,3}\d|\bloss\b[^\d\n]{0,12}\d|\d ?(?:it/s|s/it)\b"
    rb'|"POST /\S{0,100} HTTP/\d\.\d" 200\b'
)
FEW_STEPS = 10
# After such a line, the same process can only write what it had buffered.
_LAST = re.compile(r"\b(?:FATAL|[Ff]atal|PANIC|[Pp]anic(?:ked)?)\b|^(?:\S{1,80} )?F\d{4} \d\d:\d\d:\d\d")
# What LSF, SageMaker, SkyPilot and Ray print about a job that succeeded.
_SUCCESS = re.compile(
    rb"^Successfully completed\.\s*$|Reporting training SUCCESS\s*$"
    rb"|\(status: SUCCEEDED\)|Job '\S+' succeeded\s*$"
)


@lru_cache(maxsize=512)  # each error checks the lines below the first one
def shows_work(line: bytes) -> bool:
    """Return whether a line is one that a training prints while it works."""
    return _PROGRESS.search(line) is not None


def reports_end(text: str) -> bool:
    """Return whether a line says that its process cannot continue."""
    return _LAST.search(text) is not None


def states_success(line: bytes) -> bool:
    """Return whether in this line a scheduler or a launcher reports that the job succeeded."""
    return _SUCCESS.search(line) is not None
