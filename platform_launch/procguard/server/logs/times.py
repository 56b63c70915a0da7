"""The arrival times of a run's log by this server's clock, in a file beside the segments.

Clocks of nodes are never compared, so this is the only time that can order lines of several workers. Its
resolution is how often agents send, about half a second. What was written while the server was down arrived
when it was back.
"""

from __future__ import annotations

import struct
import threading
import time
from bisect import bisect_left, bisect_right
from contextlib import suppress
from pathlib import Path

from platform_launch.files import write_all, write_whole

FILE = "times"
_MARK = struct.Struct("<QQ")  # an offset, and the arrival time of the bytes from there on, in ms since 1970
_APART_MS = 500
_MOST = 8192


class LogTime:
    """The time of this server's logs: the machine's, but never going back. Thread-safe.

    If the machine's clock is set back, this one runs at half speed until that has caught up, so new lines
    still come after old ones.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ms = 0.0
        self._steady_ms = time.monotonic() * 1000

    def now_ms(self, after_ms: int = 0) -> int:
        """Return the time; not before ``after_ms``, when something reached an earlier server."""
        with self._lock:
            steady_ms = time.monotonic() * 1000
            slowly = self._ms + (steady_ms - self._steady_ms) / 2
            self._ms, self._steady_ms = max(time.time() * 1000, slowly, after_ms), steady_ms
            return int(self._ms)


class ArrivalMarks:
    """The arrival times of one run's log, in order. Without any, everything arrived at ``otherwise_ms``."""

    def __init__(self, data: bytes, otherwise_ms: int = 0) -> None:
        self._data = data[: len(data) // _MARK.size * _MARK.size] or _MARK.pack(0, otherwise_ms)
        self._places = range(len(self._data) // _MARK.size)

    @classmethod
    def read(cls, folder: Path) -> ArrivalMarks:
        """Read the arrival times of a run."""
        data, otherwise_ms = b"", 0
        with suppress(OSError):
            otherwise_ms = int(folder.stat().st_mtime * 1000)
        with suppress(OSError):
            data = (folder / FILE).read_bytes()
        return cls(data, otherwise_ms)

    def at_ms(self, offset: int) -> int:
        """Return when a byte arrived."""
        return self._mark(max(0, bisect_right(self._places, offset, key=lambda i: self._mark(i)[0]) - 1))[1]

    @property
    def newest_ms(self) -> int:
        """When the last byte arrived."""
        return self._mark(-1)[1]

    def offset_at(self, at_ms: int) -> int:
        """Return the first offset whose byte arrived at this time or later, or one beyond all."""
        place = bisect_left(self._places, at_ms, key=lambda i: self._mark(i)[1])
        if place == 0:
            return 0
        return self._mark(place)[0] if place < len(self._places) else 2**62

    def _mark(self, place: int) -> tuple[int, int]:
        offset, at_ms = _MARK.unpack_from(self._data, self._places[place] * _MARK.size)
        return offset, at_ms


class ArrivalClock:
    """Writes the arrival times of one run. In a long log every second old one is dropped."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.last_ms = 0
        self._count = 0
        with suppress(OSError):
            data = self._path.read_bytes()
            self._count = len(data) // _MARK.size
            if self._count:
                self.last_ms = _MARK.unpack_from(data, (self._count - 1) * _MARK.size)[1]

    def record(self, offset: int, now_ms: int) -> None:
        """Record that the bytes from ``offset`` on arrive now, by LogTime. Raises OSError."""
        if now_ms - self.last_ms < _APART_MS:
            return
        if self._count >= _MOST:
            self._thin_out()
        with self._path.open("ab", buffering=0) as file:
            if torn := file.tell() % _MARK.size:  # by a full disk; all later entries would be misread
                file.truncate(file.tell() - torn)
            write_all(file.fileno(), _MARK.pack(offset, now_ms))
        self.last_ms, self._count = now_ms, self._count + 1

    def _thin_out(self) -> None:
        data = self._path.read_bytes()
        marks = [data[i : i + _MARK.size] for i in range(0, self._count * _MARK.size, _MARK.size)]
        half = len(marks) // 2
        kept = marks[:half:2] + marks[half:]
        write_whole(self._path, b"".join(kept))
        self._count = len(kept)
