"""Parts of the logs of runs."""

from __future__ import annotations

from datetime import datetime

from platform_launch.procguard.api.shapes import Shape


class LogMatch(Shape):
    """A matching line, with its number from 1 and the offset of its first byte."""

    line: int
    offset: int
    text: str
    match: bool = True
    """False: a line of context."""


class LogRun(Shape):
    """The run of a group that a worker's generation was."""

    generation: int
    group: str
    number: int


class LogWindow(Shape):
    """A part of a run's log. Offsets count all bytes the worker wrote, including those no longer stored.

    ``offset`` is where ``text`` begins: later than requested if bytes were dropped to keep the log within its
    limit. ``next_offset`` is where to continue, ``size`` the end. ``line`` is the number of the first line.
    ``matches`` is None without a search; ``more``: the search continues at ``next_offset``.
    """

    worker: str
    generation: int
    generations: list[int]
    runs: list[LogRun] = []
    """The runs of these generations, if known."""
    offset: int
    next_offset: int
    size: int
    line: int
    text: str
    matches: list[LogMatch] | None = None
    more: bool = False


class MergedLogLine(Shape):
    """A line of one rank's log, with the offset of its first byte and the time the server received it."""

    rank: int
    worker: str
    at: datetime
    offset: int
    text: str
    match: bool = True
    """False: a line of context."""
    place: str
    """Its position among all lines, for ``before`` and ``after``."""


class MergedLogPage(Shape):
    """Lines of all ranks of a run, in the order in which the server received them.

    ``before`` and ``after`` are where to continue, None if there is nothing; ``more``: what follows can be
    read at once. ``read`` of ``size`` bytes are before ``after``. The last two seconds of a running job are
    left out: other lines may still come before them.
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
    """The position of the requested line."""
