"""Transforms the bytes of a job's output. Pure, with bounded memory.

Each class takes chunks as they were read, with line ends anywhere, and returns what to write now.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

_HELD_BYTES = 64 * 1024
_INNER_BREAK = re.compile(rb"(?:\r(?!\n)|\n)(?!\Z)")
_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_OPEN_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?)?\Z")


class LinePrefix:
    """Puts a prefix before each line and each redraw of a line (``\\r``), as soon as the line begins."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._last = b"\n"

    @property
    def at_line_start(self) -> bool:
        """Whether everything so far ended with a line end."""
        return self._last == b"\n"

    def end_line(self) -> None:
        """Treat what comes next as the start of a line."""
        self._last = b"\n"

    def whole(self, line: str) -> bytes:
        """Return a complete line with the prefix."""
        return self._prefix + line.encode(errors="backslashreplace") + b"\n"

    def feed(self, data: bytes) -> bytes:
        """Return the chunk with prefixes."""
        if not data:
            return data
        last, self._last = self._last, data[-1:]
        prefix = self._prefix
        if not prefix:
            return data
        begins = last == b"\n" or (last == b"\r" and not data.startswith(b"\n"))
        if b"\r" in data:
            text = _INNER_BREAK.sub(lambda found: found[0] + prefix, data)
        else:
            text = data[:-1].replace(b"\n", b"\n" + prefix) + data[-1:]
        return prefix + text if begins else text


class LogText:
    """Prepares a terminal's byte stream for a file: no colours or cursor moves, and few redraws.

    A line that is redrawn over and over (a progress bar) is kept once every ``interval_s``, and in its last
    state: ten redraws per second would fill gigabytes within days.
    """

    def __init__(self, interval_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._written_at = float("-inf")
        self._drawn = b""  # an unfinished line with a carriage return
        self._escape = b""  # the first part of an escape sequence, cut off by the end of a chunk
        self._mid_line = False  # the first part of the current line was written

    def feed(self, data: bytes) -> bytes:
        """Return the part of the chunk to write now."""
        if self._escape or b"\x1b" in data:
            data = self._without_escapes(data)
        if not self._drawn and b"\r" not in data:
            if data:
                self._mid_line = not data.endswith(b"\n")
            return data
        *lines, tail = (self._drawn + data).split(b"\n")
        pieces = [_last_state(line) + b"\n" for line in lines]
        if lines:
            if self._mid_line and b"\r" in lines[0].rstrip(b"\r"):
                pieces.insert(0, b"\n")
            self._mid_line = False
        pieces.append(self._feed_unfinished(tail))
        return b"".join(pieces)

    def finish(self) -> bytes:
        """Return what was held back, with a line end."""
        state, self._drawn = _last_state(self._drawn), b""
        return state + b"\n" if state else b""

    def _feed_unfinished(self, tail: bytes) -> bytes:
        self._drawn = b""
        if b"\r" not in tail:
            self._mid_line = self._mid_line or bool(tail)
            return tail
        parting = b"\n" if self._mid_line else b""
        self._mid_line = False
        state, now = _last_state(tail), self._clock()
        if (state and now - self._written_at >= self._interval_s) or len(state) > _HELD_BYTES:
            self._written_at = now
            return parting + state + b"\n"
        self._drawn = b"\r" + state + (b"\r" if tail.endswith(b"\r") else b"")
        return parting

    def _without_escapes(self, data: bytes) -> bytes:
        data = self._escape + data
        cut = _OPEN_ESCAPE.search(data, max(0, len(data) - 256))
        self._escape = cut[0] if cut else b""
        return _ESCAPE.sub(b"", data[: cut.start()] if cut else data)


class RedrawnLines:
    """Splits a stream into finished lines and the progress bar that is being drawn, for a terminal."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, bytes | None]:
        """Return the finished lines, each in its last state, and the new state of the unfinished one.

        None: it is not a bar, or it has not changed. Empty: the bar has become a finished line.
        """
        before = self._held
        *lines, self._held = (before + data).split(b"\n")
        finished = b"".join(_ESCAPE.sub(b"", _last_state(line)) + b"\n" for line in lines)
        if b"\r" in self._held:
            bar = _last_state(self._held)
            self._held = b"\r" + bar + (b"\r" if self._held.endswith(b"\r") else b"")
            return finished, _ESCAPE.sub(b"", bar)
        if len(self._held) > _HELD_BYTES:
            finished, self._held = finished + self._held + b"\n", b""
        return finished, b"" if lines and b"\r" in before else None

    def finish(self) -> bytes:
        """Return the unfinished last line, with a line end."""
        held, self._held = _ESCAPE.sub(b"", _last_state(self._held)), b""
        return held + b"\n" if held else b""


class WholeLines:
    """Holds a line back until it is complete, so that lines of several writers do not mix."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return the complete lines; a line longer than 64 KiB is returned in pieces."""
        data = self._held + data
        end = data.rfind(b"\n") + 1
        self._held = data[end:]
        if len(self._held) > _HELD_BYTES:
            self._held = b""
            return data + b"\n"
        return data[:end]

    def finish(self) -> bytes:
        """Return the unfinished last line, with a line end."""
        held, self._held = self._held, b""
        return held + b"\n" if held else b""


def without_escapes(line: bytes) -> bytes:
    """Return a line without colours and cursor moves."""
    return _ESCAPE.sub(b"", line) if b"\x1b" in line else line


def _last_state(line: bytes) -> bytes:
    line = line.rstrip(b"\r")
    return line[line.rfind(b"\r") + 1 :]
