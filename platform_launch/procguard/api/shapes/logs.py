"""Parts of the logs of runs."""

from __future__ import annotations

from datetime import datetime

from platform_launch.procguard.api.shapes import Shape


class LogMatch(Shape):
    """A line that holds what was searched for, by its number from 1 and the offset of its first byte."""

    line: int
    offset: int
    text: str
    match: bool = True
    """False: it only stands beside one that was searched for."""


class LogRun(Shape):
    """The name of a worker's generation: a run of a group."""

    generation: int
    group: str
    number: int


class LogWindow(Shape):
    """A part of a run's log. Offsets count the bytes its worker wrote, also those no longer kept.

    ``offset`` is where ``text`` begins: later than asked for where bytes were left out to keep the log within
    its limit. ``next_offset`` is where to go on, ``size`` the end. ``line`` is the number of the first line.
    ``matches`` is None when nothing was searched for; ``more`` tells that the search goes on there.
    """

    worker: str
    generation: int
    generations: list[int]
    runs: list[LogRun] = []
    """What those generations were called in their groups, where that is known."""
    offset: int
    next_offset: int
    size: int
    line: int
    text: str
    matches: list[LogMatch] | None = None
    more: bool = False


class MergedLogLine(Shape):
    """A line of one rank's log: the offset of its first byte there, and when the server had it."""

    rank: int
    worker: str
    at: datetime
    offset: int
    text: str
    match: bool = True
    """False: it only stands beside one that was searched for."""
    place: str
    """Its place among all lines, for ``before`` and ``after``."""


class MergedLogPage(Shape):
    """Lines of all ranks of a run, in the order in which the server had them.

    ``before`` and ``after`` are where to go on, None where there is nothing earlier; ``more``: what comes
    after can be read at once. ``read`` of ``size`` bytes are before ``after``. Lines of the last two seconds
    are left out while the run goes on: others may come before them.
    """

    group: str
    run: int
    generation: int
    ended: bool
    lines: list[MergedLogLine]
    before: str | None
    after: str | None
    more: bool
    read: int = 0
    size: int = 0
    target: str | None = None
    """The place of the line that was asked for."""
