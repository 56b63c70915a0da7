"""A finding, and what a list of findings means."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from platform_launch.doctor.catalogue import CATALOGUE, REFUSALS
from platform_launch.errors import LaunchError
from platform_launch.events import Event
from platform_launch.text import Phrase
from platform_launch.values import dataclass


class Level(enum.IntEnum):
    """The severity. Its value is the exit code of ``doctor`` if nothing worse was found."""

    INFO = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True)
class Finding:
    """What was found, where (a variable, file, device or node), and what to do about it (``hint``).

    ``id`` is in the catalogue: scripts may depend on it, while the texts change.
    """

    id: str
    level: Level
    what: str
    where: str
    hint: str = ""

    def __post_init__(self) -> None:
        assert self.id in CATALOGUE, self.id

    def as_event(self) -> Event:
        """Return it as an event of a launch."""
        level = {Level.INFO: "INFO", Level.WARNING: "WARN", Level.ERROR: "ERROR"}[self.level]
        return Event(self.id, level, self.where, {"what": self.what, "hint": self.hint})

    def as_dict(self) -> dict[str, str]:
        """Return the JSON form."""
        return {
            "id": self.id,
            "level": self.level.name.lower(),
            "what": self.what,
            "where": self.where,
            "hint": self.hint,
        }


def error(finding_id: str, what: str, where: str, hint: str = "") -> Finding:
    """Return a finding that is a certain failure."""
    return Finding(finding_id, Level.ERROR, what, where, hint)


def warning(finding_id: str, what: str, where: str, hint: str = "") -> Finding:
    """Return a finding that may make the job slow, or fail."""
    return Finding(finding_id, Level.WARNING, what, where, hint)


def info(finding_id: str, what: str, where: str, hint: str = "") -> Finding:
    """Return a measurement, or a fact that disturbs no run."""
    return Finding(finding_id, Level.INFO, what, where, hint)


def worst(findings: Iterable[Finding]) -> Level:
    """Return the highest level, INFO for none at all."""
    return max((finding.level for finding in findings), default=Level.INFO)


def refuse(findings: Iterable[Finding]) -> None:
    """Raise the first error among the findings, if any, as the error family of its id."""
    first = next((finding for finding in findings if finding.level is Level.ERROR), None)
    if first is not None:
        hint = Phrase("{hint} (--no-doctor starts nevertheless)", hint=first.hint)
        refusal = REFUSALS[first.id](first.what, hint)
        raise refusal.known_as(first.id)


def of_refusal(refusal: LaunchError) -> Finding:
    """Return the error of a refused launch as a finding."""
    return error(refusal.event, refusal.message, Phrase("launch plan"), refusal.hint)
