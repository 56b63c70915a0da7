"""Parts of the logs of runs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from platform_launch.procguard.api.shapes import Shape


class LogQuery(Shape):
    """What to read of a log: lines from, before or around a position, or those that a search selects.

    Without any of it: the last lines. A search runs for half a second, or until it has ``limit`` lines; with
    ``more`` in the answer, repeat it with that answer's ``after``.
    """

    before: Annotated[
        str | None, Field(max_length=40, description="The last lines before this position.")
    ] = None
    after: Annotated[
        str | None,
        Field(max_length=40, description="The lines from this position on; empty: from the first."),
    ] = None
    line: Annotated[int | None, Field(ge=1, lt=2**53, description="The lines around this one.")] = None
    limit: Annotated[int, Field(ge=1, le=5_000, description="Maximum number of lines.")] = 500
    search: Annotated[
        str, Field(max_length=200, description="With `after`: lines that contain this, ignoring case.")
    ] = ""
    expression: Annotated[bool, Field(description="`search` is a regular expression (RE2).")] = False
    errors: Annotated[bool, Field(description="With `after`: lines that look like errors.")] = False
    context: Annotated[int, Field(ge=0, le=20, description="Lines of context around each match.")] = 0


class WorkerLogQuery(LogQuery):
    """What to read of a worker's log."""

    generation: Annotated[
        int | None, Field(ge=0, lt=2**31, description="The run; the newest one with a log by default.")
    ] = None
    offset: Annotated[
        int | None, Field(ge=0, lt=2**53, description="The lines around the one that begins at this byte.")
    ] = None


class GroupLogQuery(LogQuery):
    """What to read of the logs of a group's ranks."""

    run: Annotated[int | None, Field(ge=0, lt=2**53, description="The run; the newest by default.")] = None
    ranks: Annotated[str, Field(max_length=200, description="Only these ranks, such as `0-3,7`.")] = ""
    rank: Annotated[int | None, Field(ge=0, lt=2**31, description="With `line`: the rank of that line.")] = (
        None
    )


class LogRun(Shape):
    """The run of a group that a worker's generation was."""

    generation: int
    group: str
    number: int


class PageLine(Shape):
    """A line of one rank's log, with the offset of its first byte and the time the server received it."""

    rank: int
    worker: str
    number: int
    """Counts the lines of a single log from 1; 0 if several ranks are shown."""
    at: datetime
    offset: int
    text: str
    match: bool = True
    """False: a line of context."""
    place: str
    """Its position among all lines, for ``before`` and ``after``."""


class LogPage(Shape):
    """Lines of a worker's log, or of all ranks of a run in the order in which the server received them.

    ``before`` and ``after`` are where to continue; ``before`` is None if there is nothing. ``more``: what
    follows can be read at once. ``read`` of ``size`` bytes are before ``after``. A single log is shown up to
    its end: a last line without a newline is at ``after``, and comes again with the next page. Of several
    ranks, the last two seconds of a running job are left out: other lines may still come before them.
    """

    generation: int
    lines: list[PageLine]
    before: str | None
    after: str
    more: bool
    read: int
    size: int
    target: str | None
    """The position of the requested line."""


class GroupLogPage(LogPage):
    """Lines of a group's run; ``ended``: no more will come."""

    group: str
    run: int
    ended: bool


class WorkerLogPage(LogPage):
    """Lines of a worker's run.

    ``generations`` are those with a log, ``runs`` their names in groups if known.
    """

    worker: str
    generations: list[int]
    runs: list[LogRun]
