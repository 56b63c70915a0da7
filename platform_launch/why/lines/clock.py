"""When the things in a log happened: a line without a time follows the latest one that has one."""

from __future__ import annotations

from dataclasses import dataclass

from platform_launch.why.lines.line import Line


@dataclass(frozen=True)
class LineTime:
    """A time within the year: that of a line itself, and the latest one up to it; None if there is none."""

    time_s: float | None = None
    not_before_s: float | None = None


class Clock:
    """Follows the times in one log."""

    def __init__(self) -> None:
        self._latest_s: float | None = None

    def read(self, line: Line) -> None:
        """Record a line's time."""
        if line.time_s is not None:
            self._latest_s = line.time_s

    def moment(self, line: Line) -> LineTime:
        """Return when the line that was read last was written."""
        return LineTime(line.time_s, self._latest_s)
