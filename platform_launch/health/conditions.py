"""Tracks conditions: one event when a condition begins and one when it ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from platform_launch.health.finding import DeviceFinding

# A condition that comes and goes is one condition.
CALM_S = 60.0


@dataclass
class Condition:
    """A finding that holds. Times are those of the readings."""

    finding: DeviceFinding
    began_s: float
    seen_s: float


class Conditions:
    """The findings that hold now; two are the same if id, place and code are."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, int | None], Condition] = {}

    @property
    def now(self) -> tuple[DeviceFinding, ...]:
        """The current findings."""
        return tuple(condition.finding for condition in self._open.values())

    def update(
        self, found: Iterable[DeviceFinding], at_s: float
    ) -> tuple[list[DeviceFinding], list[Condition]]:
        """Record new findings; return the conditions that have begun, and those that have ended."""
        begun = []
        for finding in found:
            key = (finding.id, finding.where, finding.code)  # a count that grows is one condition
            if key in self._open:
                self._open[key].finding, self._open[key].seen_s = finding, at_s
            else:
                self._open[key] = Condition(finding, at_s, at_s)
                begun.append(finding)
        over = [key for key, condition in self._open.items() if at_s - condition.seen_s >= CALM_S]
        return begun, [self._open.pop(key) for key in over]
