"""What is wrong from when to when: a line when something begins and one when it ends, none in between."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from platform_launch.health.finding import DeviceFinding

# What comes and goes is one condition, and not one for each time.
CALM_S = 60.0


@dataclass
class Condition:
    """A finding that holds. Times are those of the readings."""

    finding: DeviceFinding
    began_s: float
    seen_s: float


class Conditions:
    """The findings that hold at the moment; two are the same when id, place and code are."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, int | None], Condition] = {}

    @property
    def now(self) -> tuple[DeviceFinding, ...]:
        """What is wrong."""
        return tuple(condition.finding for condition in self._open.values())

    def update(
        self, found: Iterable[DeviceFinding], at_s: float
    ) -> tuple[list[DeviceFinding], list[Condition]]:
        """Take in what was found; return what has begun, and what has ended."""
        begun = []
        for finding in found:
            key = (finding.id, finding.where, finding.code)  # a count that grows is one thing
            if key in self._open:
                self._open[key].finding, self._open[key].seen_s = finding, at_s
            else:
                self._open[key] = Condition(finding, at_s, at_s)
                begun.append(finding)
        over = [key for key, condition in self._open.items() if at_s - condition.seen_s >= CALM_S]
        return begun, [self._open.pop(key) for key in over]
