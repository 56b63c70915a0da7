"""Limits the size of a log: keeps its head and its tail, where the causes are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from platform_launch.events import event, in_text

_STEP_BYTES = 1024 * 1024


class LogLimit:
    """Keeps a file below ``most_bytes``: its first half, and the last quarter of what follows.

    It remains the same file, so a follower sees it become shorter. Nothing else may write to it.
    """

    def __init__(self, path: Path, most_bytes: int, size: int) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._size = size
        self._left_out_bytes = 0

    def grown(self, by: int, progress: Callable[[], None]) -> None:
        """Count what was written, and remove the middle if that is too much. Raises OSError.

        ``progress`` is called now and then: moving the tail of a large file takes a while.
        """
        self._size += by
        if self._size >= self._most_bytes:
            self._size = self._cut(progress)

    def _cut(self, progress: Callable[[], None]) -> int:
        # Without O_APPEND, which would decide where a write goes.
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
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
