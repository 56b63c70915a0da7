"""The log file of a run: worth having, never worth a training."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


class LogFile:
    """A file that several streams append to. Its loss (full disk, read-only folder) is told once and borne.

    ``path`` becomes None when the file could not be opened or a write failed.
    """

    def __init__(self, path: Path | None, say: Callable[[str, str], None]) -> None:
        self.path = path
        self._say = say
        self._fd = -1
        self._mid_line_of: object = None

    def open(self) -> None:
        """Create the file and its folder."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._lose(error)

    def append(self, data: bytes, writer: object) -> None:
        """Append a stream's text, on a line of its own where another stream left one unfinished."""
        if self._fd < 0 or not data:
            return
        if self._mid_line_of not in (None, writer):
            data = b"\n" + data
        self._mid_line_of = None if data.endswith(b"\n") else writer
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self._lose(error)

    def close(self) -> None:
        """Close the file; later text is dropped."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _lose(self, error: OSError) -> None:
        lost, self.path = self.path, None
        self.close()
        self._say(
            "WARN", f"no log file from here on: {lost}: {error.strerror}; the training goes on without it"
        )
