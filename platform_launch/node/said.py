"""What the training of one start wrote into the log; earlier starts and the launcher wrote there too."""

from __future__ import annotations

import io
import os
from pathlib import Path

from platform_launch.hardware.cgroup import OomKills
from platform_launch.rollcall.cause import last_words

_TAIL_BYTES = 256 * 1024
_MOST_LINES = 6
_LONGEST_LINE = 240


class Said:
    """The end of a log, from the place where :meth:`begin` was called."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._start = 0
        self._lines_before: int | None = 0  # None: too many to be counted
        self._oom_kills = OomKills()

    def begin(self) -> None:
        """Take what comes from now on for the training's."""
        self._oom_kills = OomKills()
        try:
            with self._log.open("rb") as file:
                self._start = file.seek(0, os.SEEK_END)
                file.seek(0)
                self._lines_before = file.read().count(b"\n") if self._start < _TAIL_BYTES else None
        except OSError:
            self._start = self._lines_before = 0

    def text(self) -> str:
        """Return the end of it."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(self._start, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def why(self) -> tuple[str, ...]:
        """Return what the other nodes should repeat: the cause where one can be told, else the last words."""
        from platform_launch.why import LogSource, explain

        text, name = self.text(), self._log.name
        if len(text) < _TAIL_BYTES and self._lines_before is not None:
            text = "\n" * self._lines_before + text
        else:  # line numbers would mislead
            name = f"the end of {name}"
        verdict = explain([LogSource(name, io.BytesIO(text.encode()))], self._oom_kills.so_far())
        if verdict.kind in ("cause", "suspect", "unknown"):
            return tuple(line[:_LONGEST_LINE] for line in verdict.lines()[:_MOST_LINES])
        return last_words(text)
