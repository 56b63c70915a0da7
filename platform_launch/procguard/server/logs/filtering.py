"""Which lines of a log are wanted: a text, a regular expression, or what looks like an error."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import regex

from platform_launch.procguard.api.refused import RequestRefused

_WITHIN_S = 2.0
"""What one request may spend on a regular expression: some take time without end."""

_ERRORS = regex.compile(
    r"\b\w*(?:Error|Exception)\b|\bTraceback \(most recent call last\)|\b(?:ERROR|FATAL|CRITICAL|NCCL WARN)\b"
    r"|\[E\d{3}|[Ss]egmentation fault|core dumped|\bKilled\b|[Oo]ut of memory|\bAborted\b"
    r"|[Aa]ssertion.*failed"
)


class BadPattern(RequestRefused):
    """A regular expression that is none, or that takes too long."""

    status = 422


@dataclass(frozen=True)
class LogLine:
    """A line of a log: the offset of its first byte, and what it says.

    ``match`` False: it only stands beside one that is wanted. ``number`` counts from 1, 0 where nobody did.
    """

    offset: int
    text: str
    match: bool = True
    number: int = 0


class LineFilter:
    """Tells which lines are wanted. ``text`` is sought in any case, as it is or as a regular expression.

    One filter serves one request: the time that its expression may take is counted. Raises BadPattern.
    """

    def __init__(self, text: str = "", *, expression: bool = False, errors: bool = False) -> None:
        self._errors = errors
        self._until = time.monotonic() + _WITHIN_S
        self._plain = "" if expression else text.casefold()
        self._pattern = None
        if expression and text:
            try:
                self._pattern = regex.compile(text, regex.IGNORECASE)
            except regex.error as error:
                raise BadPattern(
                    f"not a regular expression: {error}", "a plain text is found without it"
                ) from error

    @property
    def everything(self) -> bool:
        """Whether no line is left out."""
        return not (self._errors or self._plain or self._pattern)

    def may_hold(self, block: str) -> bool:
        """Tell whether a part of a log can hold a wanted line; quick where it cannot."""
        return self._plain in block.casefold()

    def wants(self, line: str) -> bool:
        """Tell whether a line is wanted. Raises BadPattern when that takes too long."""
        if self._plain and self._plain not in line.casefold():
            return False
        if self._errors and not _ERRORS.search(line):
            return False
        if self._pattern is None:
            return True
        left_s = self._until - time.monotonic()
        try:
            if left_s > 0:
                return self._pattern.search(line, timeout=left_s, concurrent=True) is not None
        except TimeoutError:
            pass
        raise BadPattern(
            f"the regular expression takes more than {_WITHIN_S:g} s", "write a simpler one, or a plain text"
        )

    def with_context(self, lines: Iterable[LogLine], context: int) -> Iterator[LogLine]:
        """Yield the wanted lines, and so many before and after each."""
        before: list[LogLine] = []
        after = 0
        for line in lines:
            if self.wants(line.text):
                yield from before
                before.clear()
                after = context
                yield line
            elif after:
                after -= 1
                yield replace(line, match=False)
            elif context:
                before.append(replace(line, match=False))
                del before[:-context]
