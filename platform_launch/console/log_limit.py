"""A log that may not grow for ever: its head and its tail are kept, where the causes are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from platform_launch.events import event, in_text

_STEP_BYTES = 1024 * 1024


class LogLimit:
    """Keeps a file below ``most_bytes``: the first half stays, of what follows the last quarter.

    The file stays one, so whoever follows it sees it become shorter. Nothing else may write to it meanwhile.
    """

    def __init__(self, path: Path, most_bytes: int, size: int) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._size = size
        self._left_out_bytes = 0

    def grown(self, by: int, progress: Callable[[], None]) -> None:
        """Take note of what was written, and leave the middle out where that is too much. Raises OSError.

        ``progress`` is called now and then: to move the tail of a large file takes a while.
        """
        self._size += by
        if self._size >= self._most_bytes:
            self._size = self._cut(progress)

    def _cut(self, progress: Callable[[], None]) -> int:
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)  # without O_APPEND, which rules where a write goes
        try:
            size = os.fstat(fd).st_size
            if size < self._most_bytes:
                return size
            head, start = self._most_bytes // 2, size - self._most_bytes // 4
            start += os.pread(fd, _STEP_BYTES, start).find(b"\n") + 1
            self._left_out_bytes += start - head
            text = in_text(event("log-cut", left_out_mib=round(self._left_out_bytes / 2**20, 1)))
            end = head + os.pwrite(fd, f"\n{text}\n".encode(), head)
            while data := os.pread(fd, min(_STEP_BYTES, size - start), start):
                start += len(data)
                end += os.pwrite(fd, data, end)
                progress()
            os.ftruncate(fd, end)
            return end
        finally:
            os.close(fd)
