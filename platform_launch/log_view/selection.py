"""Which lines of the logs to show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from platform_launch.errors import UsageError
from platform_launch.log_view.entry import LogEntry, rank_of_level
from platform_launch.text import Phrase


@dataclass(frozen=True)
class Selection:
    """``level``: no line below it. ``pattern``: only lines that match it.

    With a level above INFO, of a traceback only the line that names the exception is left.
    """

    level: str = "INFO"
    pattern: re.Pattern[str] | None = None

    @property
    def selects_all(self) -> bool:
        """Whether every line is selected."""
        return self.level == "INFO" and self.pattern is None

    @property
    def selects_info(self) -> bool:
        """Whether lines without a level are selected."""
        return self.level == "INFO"

    def of(self, entries: Iterable[LogEntry], *, by_line: bool = False) -> Iterator[LogEntry]:
        """Yield the selected entries; a run of selected lines stays one entry, unless ``by_line``."""
        for entry in entries:
            too_low = rank_of_level(entry.level) < rank_of_level(self.level)
            if self.level != "INFO" and (too_low or entry.is_frame):
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
            Phrase("--grep {text!r} is not a valid regular expression: {problem}", text=text, problem=error),
            "escape special characters with a backslash: ( [ { . * + ? | ^ $",
        ) from error
