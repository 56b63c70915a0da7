"""Whether it is worth starting the same job again: one table (``retry.yaml``), "yes" only with evidence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from platform_launch.files import yaml_values

_FILE = Path(__file__).with_name("retry.yaml")


@dataclass(frozen=True)
class RetryReason:
    """Why some causes are worth a retry, and on which node, or why they are not."""

    answer: str
    because: str
    causes: tuple[str, ...]
    evidence: str = ""
    on_several_nodes: str = ""


@lru_cache(maxsize=1)
def retry_table() -> tuple[RetryReason, ...]:
    """Return the table, in the order of the file."""
    entries = yaml_values(_FILE.read_bytes())
    return tuple(RetryReason(**{**entry, "causes": tuple(entry["causes"])}) for entry in entries)


def retry_of(cause: str) -> RetryReason | None:
    """Return whether a cause is worth a retry, None if that is not known."""
    return next((one for one in retry_table() if cause in one.causes), None)
