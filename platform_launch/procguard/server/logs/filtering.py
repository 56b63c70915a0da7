"""Selects lines of a log: by text, by regular expression, or because they look like errors.

Whole blocks are searched, and only those with a match are split into lines. Expressions are RE2's: linear
time, limited memory, and other threads run meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import re2

from platform_launch.procguard.api.refused import RequestRefused

_WITHIN_S = 0.5
"""Time limit of one request; the client continues from where it stopped."""
_MOST_MEMORY = 1024 * 1024
"""Bytes of a compiled expression; a larger one is refused at compilation."""
SHOWN_OF_LINE = 2_000
"""Bytes, if the lines of several ranks are shown."""

_ERRORS = (
    r"(?-i:(?:Error|Exception)\b|\bTraceback \(most recent call last\)|\b(?:ERROR|FATAL|CRITICAL|NCCL WARN)\b"
    r"|\[E\d{3}|[Ss]egmentation fault|core dumped|\bKilled\b|[Oo]ut of memory|\bAborted\b"
    r"|[Aa]ssertion.*failed)"
)


class BadPattern(RequestRefused):
    """An invalid regular expression, or one that is too large."""

    status = 422


@dataclass(frozen=True)
class LogLine:
    """A line of a log, with the offset of its first byte.

    ``match`` is False for a line of context. ``number`` counts from 1; 0 if unknown.
    """

    offset: int
    text: str
    match: bool = True
    number: int = 0


class LineFilter:
    """Selects lines. ``text`` is case-insensitive, and literal unless it is a regular expression.

    A filter serves one request and keeps its time limit. Raises BadPattern.
    """

    def __init__(self, text: str = "", *, expression: bool = False, errors: bool = False) -> None:
        self._until = time.monotonic() + _WITHIN_S
        patterns = [_ERRORS] if errors else []
        if text:
            patterns.insert(0, text if expression else str(re2.escape(text)))
        self._first, *self._others = [_compiled(pattern) for pattern in patterns] or [None]

    @property
    def everything(self) -> bool:
        """Whether every line is selected."""
        return self._first is None

    @property
    def time_is_up(self) -> bool:
        """Whether the time limit of this request is reached."""
        return time.monotonic() > self._until

    def wanted(self, block: bytes) -> Iterator[int]:
        """Yield the offsets of the selected lines of a block: of whole lines, or of a part of a long one."""
        place = 0
        while 0 <= place < len(block):
            hit = place
            if self._first is not None:
                found = self._first.search(block, place)
                if found is None:
                    return
                hit = found.start()
            begin, end = block.rfind(b"\n", place, hit) + 1 or place, block.find(b"\n", hit)
            line_end = len(block) if end < 0 else end
            # No match spans lines (never_nl), so none is missed by skipping this line.
            if all(pattern.search(block[begin:line_end]) for pattern in self._others):
                yield begin
            place = end + 1 if end >= 0 else -1


class LineScan:
    """Finds the selected lines of one log, block by block, with lines of context.

    A line is shown up to ``longest`` bytes.
    """

    def __init__(self, wanted: LineFilter, context: int = 0, longest: int = SHOWN_OF_LINE) -> None:
        self._wanted = wanted
        self._context = context
        self._longest = longest
        self._before: deque[LogLine] = deque(maxlen=context)
        self._after = 0

    def lines(self, offset: int, block: bytes, number: int = 0) -> Iterator[LogLine]:
        """Yield those of the next block, given its offset and the number of its first line (0: unknown)."""
        if not self._context:
            counted = 0
            for begin in self._wanted.wanted(block):
                if number:
                    number, counted = number + block.count(b"\n", counted, begin), begin
                yield self._line(offset, block, begin, number)
            return
        hits = set(self._wanted.wanted(block))
        if not hits and not self._after:
            self._keep_last(offset, block, number)
            return
        begin = 0
        while begin < len(block):
            line = self._line(offset, block, begin, number)
            if begin in hits:
                yield from self._before
                self._before.clear()
                self._after = self._context
                yield line
            elif self._after:
                self._after -= 1
                yield replace(line, match=False)
            else:
                self._before.append(replace(line, match=False))
            begin, number = (block.find(b"\n", begin) + 1) or len(block), number + bool(number)

    def _keep_last(self, offset: int, block: bytes, number: int) -> None:
        """Keep the last lines of a block without a match: the next one may begin with one."""
        end = len(block)
        starts: deque[int] = deque()
        while end > 0 and len(starts) < self._context:
            end = block.rfind(b"\n", 0, end - 1) + 1
            starts.appendleft(end)
        for begin in starts:
            at = number + block.count(b"\n", 0, begin) if number else 0
            self._before.append(replace(self._line(offset, block, begin, at), match=False))

    def _line(self, offset: int, block: bytes, begin: int, number: int) -> LogLine:
        end = block.find(b"\n", begin)
        line = block[begin : len(block) if end < 0 else end][: self._longest]
        return LogLine(offset + begin, line.decode(errors="replace"), number=number)


def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.case_sensitive = options.log_errors = False
    options.never_nl = options.never_capture = True
    options.max_mem = _MOST_MEMORY
    try:
        return re2.compile(f"(?m){pattern}".encode(), options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0] if isinstance(error, re2.error) else error
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise BadPattern("bad-pattern", reason=text) from error
