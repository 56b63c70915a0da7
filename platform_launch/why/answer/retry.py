"""Whether starting the same again is worth it: only with positive evidence (``retry.yaml``)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from platform_launch.files import yaml_values

_FILE = Path(__file__).with_name("retry.yaml")


@dataclass(frozen=True)
class RetryEvidence:
    """Evidence that another start may go well: on the ``same_node`` or on ``another_node``, and why."""

    answer: str
    evidence: str
    because: str
    causes: tuple[str, ...]


@lru_cache(maxsize=1)
def retry_table() -> tuple[RetryEvidence, ...]:
    """Return the table, in the order of the file."""
    entries = yaml_values(_FILE.read_bytes())
    return tuple(RetryEvidence(**{**entry, "causes": tuple(entry["causes"])}) for entry in entries)


def retry_of(cause: str) -> RetryEvidence | None:
    """Return why a cause is worth another start, None where nothing speaks for it."""
    return next((one for one in retry_table() if cause in one.causes), None)
