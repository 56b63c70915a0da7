"""When the things in a log happened: lines without a time lie between those that have one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from platform_launch.why.lines.line import Line, parse
from platform_launch.why.lines.scan import Scanner

_LOOKBACK_LINES = 100
_CLOCK = re.compile(rb"\d\d:\d\d:\d\d")


@dataclass
class Span:
    """Bounds of a time within the year; None if no line gives one."""

    not_before_s: float | None = None
    not_after_s: float | None = None
    exact: bool = False


class Clock:
    """Follows the times in one log."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._time_s: float | None = None
        self._read_until = 0
        self._unread = 0
        self._open: list[Span] = []

    def read(self, line: Line) -> None:
        """Record a line's time: earlier lines are not later than it."""
        self._unread, self._read_until = line.number - self._read_until - 1, line.number
        if line.time_s is None:
            return
        for span in self._open:
            span.not_after_s = line.time_s
        self._open.clear()
        self._time_s = line.time_s

    def span(self, line: Line) -> Span:
        """Return when a line was written; its end closes with the next time in the log."""
        if line.time_s is not None:
            return Span(line.time_s, line.time_s, exact=True)
        span = Span(self._before())
        self.keep_open(span)
        return span

    def keep_open(self, span: Span) -> None:
        """Extend a span to the next time in the log, because its event continues."""
        if not span.exact:
            self._open.append(span)

    def _before(self) -> float | None:
        """Return the nearest time above a line; most lines with a time are not read for anything else."""
        for data in self._scanner.preceding(min(_LOOKBACK_LINES, self._unread)):
            if _CLOCK.search(data, 0, 200) and (time_s := parse(0, data[:200]).time_s) is not None:
                self._time_s = time_s
                break
        return self._time_s
