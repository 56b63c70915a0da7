"""What happens to the bytes of a training's output on their way: pure, and of bounded memory.

Each piece takes a chunk as it was read, with line ends anywhere, and returns what is to be written now.
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
    """Puts a prefix before each line and each redraw of a line (``\\r``), and only once a line has begun."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._last = b"\n"

    @property
    def at_line_start(self) -> bool:
        """Tell whether everything so far ended with a line end."""
        return self._last == b"\n"

    def end_line(self) -> None:
        """Begin a new line, whatever came so far."""
        self._last = b"\n"

    def whole(self, line: str) -> bytes:
        """Return a whole line with the prefix."""
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
    """Makes a terminal's byte stream fit for a file: no colours or cursor moves, few redraws.

    Of a line that is drawn over and over (a progress bar) it keeps one state every ``interval_s`` and the
    last one: ten redraws a second would fill gigabytes in a training of days.
    """

    def __init__(self, interval_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._kept_at = float("-inf")
        self._drawn = b""  # a line with a carriage return in it that has not ended yet
        self._escape = b""  # the beginning of an escape sequence that a chunk cut
        self._mid_line = False  # the beginning of the present line is written already

    def feed(self, data: bytes) -> bytes:
        """Return what of the chunk is to be written now."""
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
        """Return what was held back, as a finished line."""
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
        if (state and now - self._kept_at >= self._interval_s) or len(state) > _HELD_BYTES:
            self._kept_at = now
            return parting + state + b"\n"
        self._drawn = b"\r" + state + (b"\r" if tail.endswith(b"\r") else b"")
        return parting

    def _without_escapes(self, data: bytes) -> bytes:
        data = self._escape + data
        cut = _OPEN_ESCAPE.search(data, max(0, len(data) - 256))
        self._escape = cut[0] if cut else b""
        return _ESCAPE.sub(b"", data[: cut.start()] if cut else data)


class RedrawnLines:
    """Parts a stream into finished lines and the bar that is drawn now, for a terminal."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, bytes | None]:
        """Return the finished lines, each in its last state, and the new state of the unfinished one.

        None: it is no bar, or has not changed. Empty: the bar has become a finished line.
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
    """Holds the beginning of a line back until its end has come, so that many writers do not tear lines."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return the lines that are complete; a line beyond 64 KiB is given out in pieces."""
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
