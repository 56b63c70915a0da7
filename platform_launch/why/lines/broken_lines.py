"""Hands a log to grep with its endless lines broken.

grep holds a line whole, and a bar that redraws itself for days is one line.
"""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress
from typing import IO, BinaryIO

LONGEST_BYTES = 1 << 16
_DATA_BYTES = 1 << 12
_CHUNK_BYTES = 1 << 18
_PIPE_BYTES = 1 << 20


class BrokenLines:
    """Writes a file from a place on into :attr:`source`; each byte keeps its place there.

    Carriage returns become line feeds, and so does a blank of each 64 KiB that hold none. Data, which hold no
    blank for 4 KiB, become blanks. The file stays open meanwhile.
    """

    def __init__(self, file: BinaryIO, begin: int) -> None:
        reading, self._writing = os.pipe()
        self.source: IO[bytes] = os.fdopen(reading, "rb")
        self._begin = begin
        self._lines = [0]
        self._file = file
        with suppress(OSError):  # a small one is slower, no more
            fcntl.fcntl(self._writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def lines_before(self, offset: int) -> int:
        """Return how many lines of the file end before a place that was written, both from its begin on."""
        chunk, rest = divmod(offset, _CHUNK_BYTES)
        data = os.pread(self._file.fileno(), rest, self._begin + chunk * _CHUNK_BYTES)
        return self._lines[chunk] + data.count(b"\n")

    def close(self) -> None:
        """End it; whoever reads its source has ended."""
        self.source.close()
        self._thread.join()

    def _write(self) -> None:
        at = self._begin
        with os.fdopen(self._writing, "wb", buffering=0) as pipe, suppress(BrokenPipeError):
            while data := os.pread(self._file.fileno(), _CHUNK_BYTES, at):
                at += len(data)
                self._lines.append(self._lines[-1] + data.count(b"\n"))
                left = memoryview(_broken(data))
                while left:
                    left = left[pipe.write(left) :]


def _broken(data: bytes) -> bytes:
    text = bytearray(data.replace(b"\r", b"\n"))
    ended = 0
    for start in range(0, len(text), _DATA_BYTES):
        end = min(start + _DATA_BYTES, len(text))
        blank = text.rfind(b" ", start, end)
        if text.find(b"\n", start, end) >= 0:
            ended = end
        elif blank < 0:
            text[start:end] = b" " * (end - start - 1) + b"\n"
            ended = end
        elif end - ended >= LONGEST_BYTES:
            text[blank] = ord("\n")
            ended = end
    return bytes(text)
