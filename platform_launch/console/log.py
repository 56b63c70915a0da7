"""The log file of a run. Losing it never stops the run."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from platform_launch import files
from platform_launch.console.log_limit import LogLimit
from platform_launch.console.log_writer import LogWriter
from platform_launch.events import Event, event

_MOST_NAMES = 100
_TAIL_BYTES = 256 * 1024


class LogFile:
    """A file that several streams append to.

    If it is lost (a disk that is full or hangs, a read-only folder), that is reported once, and ``path``
    becomes None. ``most_bytes``: only the head and the tail of a larger log are kept; 0 keeps everything.
    """

    def __init__(self, path: Path | None, report: Callable[[Event], None], *, most_bytes: int = 0) -> None:
        self.path = path
        self._report = report
        self._most_bytes = most_bytes
        self._writer: LogWriter | None = None
        self._mid_line_of: object = None
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0

    @property
    def tail(self) -> bytes:
        """The end of the log, from memory: works without a file, and never shows an earlier run."""
        return b"".join(self._tail)[-_TAIL_BYTES:]

    def open(self) -> None:
        """Open the file, which may exist; create it and its folder if they are missing."""
        if self.path is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._write_to(os.open(self.path, flags, files.SHARED))
            except OSError as error:
                self._lose(error)

    def open_new(self) -> None:
        """Create the file, and its folder if that is missing; under another name if it is taken."""
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                fd, self.path = files.create_new(_names(self.path))
                self._write_to(fd)
            except OSError as error:
                self._lose(error)

    def append(self, data: bytes, writer: object) -> None:
        """Append a stream's text; it starts on a new line if another stream left one unfinished."""
        if not data:
            return
        if self._mid_line_of not in (None, writer):
            data = b"\n" + data
        self._mid_line_of = None if data.endswith(b"\n") else writer
        self._remember(data)
        if self._writer is None:
            return
        try:
            self._writer.write(data)
        except OSError as error:
            self._lose(error)

    def close(self) -> None:
        """Close the file; later text is dropped."""
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        except OSError as error:
            self._lose(error)

    def _write_to(self, fd: int) -> None:
        assert self.path is not None
        limit = LogLimit(self.path, self._most_bytes, os.fstat(fd).st_size) if self._most_bytes else None
        self._writer = LogWriter(fd, limit)

    def _remember(self, data: bytes) -> None:
        self._tail.append(data)
        self._tail_bytes += len(data)
        while len(self._tail) > 1 and self._tail_bytes - len(self._tail[0]) > _TAIL_BYTES:
            self._tail_bytes -= len(self._tail.popleft())

    def _lose(self, error: OSError) -> None:
        lost, self.path = self.path, None
        self._writer = None
        self._report(event("log-lost", path=str(lost), problem=error.strerror))


def _names(path: Path) -> Iterator[Path]:
    """Yield the names for a log: its own, then ``…-2``, ``…-3``."""
    yield path
    for number in range(2, _MOST_NAMES):
        yield path.with_stem(f"{path.stem}-{number}")
