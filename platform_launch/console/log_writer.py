"""Writes to a file in its own thread: a disk that hangs delays nobody else."""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from threading import Condition, Thread

from platform_launch.console.log_limit import LogLimit

# A working disk has taken a line by then, so readers of the log find it there. After a line that took longer,
# nothing waits until the disk has caught up.
_PATIENCE_S = 1.0
# This much at once is a flood. A few of these may be unwritten, and are lost if the launcher is killed then.
_FLOOD_BYTES = 32 * 1024
_FLOOD_ON_ITS_WAY_BYTES = 4 * _FLOOD_BYTES
_MOST_QUEUED_BYTES = 8 * 1024 * 1024
_BATCH_BYTES = 1024 * 1024
# How long a disk may hang: with a full queue; at the end; and with space in the queue, where a file system's
# snapshot or a file server's restart must pass.
_FULL_S = 10.0
_END_S = 5.0
_HUNG_S = 300.0


class LogWriter:
    """Appends to a descriptor, which it closes. Raises OSError if no thread can be started.

    Methods raise the OSError of a failed write, and ETIMEDOUT if the disk hangs; the caller then gives the
    file up. ``limit`` keeps the file small.
    """

    def __init__(self, fd: int, limit: LogLimit | None = None) -> None:
        self._fd = fd
        self._limit = limit
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._changed = Condition()
        self._moved_at = time.monotonic()
        self._error: OSError | None = None
        self._behind = self._closing = False
        try:
            Thread(target=self._work, name="log", daemon=True).start()
        except RuntimeError as error:  # Python gives no other reason
            os.close(fd)
            raise OSError(errno.EAGAIN, "no further thread can be started") from error

    def write(self, data: bytes) -> None:
        """Queue data; wait a moment for a working disk, and for room if the queue is full."""
        with self._changed:
            if not self._queue:
                self._behind, self._moved_at = False, time.monotonic()
            elif time.monotonic() - self._moved_at > _HUNG_S:
                raise self._problem()
            elif self._queued_bytes > _MOST_QUEUED_BYTES:
                self._await(_MOST_QUEUED_BYTES, _FULL_S)
            self._queue.append(data)
            self._queued_bytes += len(data)
            self._changed.notify_all()
            if not self._behind:
                on_its_way = _FLOOD_ON_ITS_WAY_BYTES if len(data) >= _FLOOD_BYTES else 0
                self._behind = not self._changed.wait_for(
                    lambda: self._queued_bytes <= on_its_way or self._error is not None, _PATIENCE_S
                )
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        """Wait until everything is written, unless the disk hangs."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._await(0, _END_S)

    def _progress(self) -> None:
        with self._changed:
            self._moved_at = time.monotonic()

    def _await(self, most_bytes: int, limit_s: float) -> None:
        while self._queued_bytes > most_bytes and self._error is None:
            left = self._moved_at + limit_s - time.monotonic()
            if left <= 0:
                raise self._problem()
            self._changed.wait(left)
        if self._error is not None:
            raise self._error

    def _problem(self) -> OSError:
        silent_s = time.monotonic() - self._moved_at
        return OSError(errno.ETIMEDOUT, f"the disk has taken nothing for {silent_s:.0f} s")

    def _work(self) -> None:
        try:
            while data := self._next():
                self._write(data)
        except Exception as error:  # whatever it is, nobody should wait for this thread any longer
            with self._changed:
                self._error = error if isinstance(error, OSError) else OSError(errno.EIO, repr(error))
                self._changed.notify_all()
        os.close(self._fd)

    def _next(self) -> bytes:
        """Return what to write next, empty at the end; it counts as queued until it is written."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            size = count = 0
            for data in self._queue:
                size, count = size + len(data), count + 1
                if size >= _BATCH_BYTES:
                    break
            return b"".join(self._queue[index] for index in range(count))

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]
            self._progress()
        if self._limit is not None:
            self._limit.grown(len(data), self._progress)
        with self._changed:
            taken = 0
            while taken < len(data):
                taken += len(self._queue.popleft())
            self._queued_bytes -= taken
            self._moved_at = time.monotonic()
            self._changed.notify_all()
