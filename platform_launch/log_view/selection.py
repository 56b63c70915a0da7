"""Which lines of the logs a person wants to see."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from platform_launch.errors import UsageError
from platform_launch.log_view.entry import LogEntry, rank_of_level
from platform_launch.text import Phrase


@dataclass(frozen=True)
class Selection:
    """``level``: no line below it. ``pattern``: only lines in which it is found."""

    level: str = "INFO"
    pattern: re.Pattern[str] | None = None

    @property
    def takes_all(self) -> bool:
        """Tell whether every line of a log is taken that is read at all."""
        return self.level == "INFO" and self.pattern is None

    @property
    def takes_info(self) -> bool:
        """Tell whether lines are taken that tell no level."""
        return self.level == "INFO"

    def of(self, entries: Iterable[LogEntry], *, by_line: bool = False) -> Iterator[LogEntry]:
        """Yield what is wanted; a run of lines that all are stays one, except ``by_line``."""
        for entry in entries:
            if self.level != "INFO" and rank_of_level(entry.level) < rank_of_level(self.level):
                continue
            if by_line or self.pattern is not None:
                yield from entry.lines(self.pattern)
            else:
                yield entry


def parse_pattern(text: str) -> re.Pattern[str]:
    """Read a regular expression. Raises UsageError."""
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(
            Phrase(
                "--grep {text!r} is no regular expression of Python's: {problem}", text=text, problem=error
            ),
            "put a backslash before signs that are meant as they are: ( [ { . * + ? | ^ $",
        ) from error
