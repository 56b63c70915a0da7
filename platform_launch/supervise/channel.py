"""A command's output: through a pipe or terminal of ours, to our own stdout or stderr and to the log.

For the command, ``isatty`` returns the same as without a supervisor, and two different files stay two
(docs/decisions/0002-output-of-the-training.md).
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import time
from collections.abc import Callable
from contextlib import suppress

from platform_launch.console.log import LogFile
from platform_launch.console.outlet import Outlet, enlarge_pipe
from platform_launch.events import Event
from platform_launch.supervise.text import LinePrefix, LogText
from platform_launch.supervise.tracebacks import TracebackFold

_CHUNK_BYTES = 64 * 1024
# After a short read, the next one waits: short lines cost per read, not per byte. A terminal holds 4 KiB: if
# it was full, the rest is read at once, as long as its writer keeps up.
_FEW_BYTES, _PAUSE_S = 32 * 1024, 0.004
_FEW_BYTES_OF_A_TERMINAL, _PAUSE_OF_A_TERMINAL_S = 512, 0.001
_IDLE_READS = 3


class Receiver:
    """Where a channel's output goes. ``due`` is when :meth:`flush` must be called (time.monotonic())."""

    outlet: Outlet
    due = float("inf")

    def feed(self, data: bytes) -> None:
        """Process a chunk of output."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write what was held back until now."""

    def finish(self) -> None:
        """Process the end of the output."""
        raise NotImplementedError


class Tee(Receiver):
    """Writes output to an outlet and into the log, with a prefix before each line.

    With ``fold``, which formats an event's line, the outlet gets less of tracebacks than the log. For
    ``many`` see :class:`TracebackFold`.
    """

    def __init__(
        self,
        outlet: Outlet,
        log: LogFile,
        prefix: str,
        fold: Callable[[Event], str] | None = None,
        *,
        many: bool = False,
    ) -> None:
        self.outlet = outlet
        self._log = log
        self._prefix = LinePrefix(prefix)
        self._log_text = LogText()
        self._fold = None
        if fold is not None:
            self._fold = TracebackFold(prefix, lambda event: self._prefix.whole(fold(event)), many=many)
        self._shows_part_of_a_line = False

    def feed(self, data: bytes) -> None:
        """Write a chunk, to the log first, so that a slow reader of ours does not delay it."""
        data = self._prefix.feed(data)
        self._log.append(self._log_text.feed(data), self)
        self._show(data if self._fold is None else self._fold.feed(data))

    def flush(self) -> None:
        """Write what is due on the screen."""
        if self._fold is not None:
            self._show(self._fold.flush())

    @property
    def due(self) -> float:  # type: ignore[override]
        """When :meth:`flush` must be called."""
        return float("inf") if self._fold is None else self._fold.due

    def _show(self, data: bytes) -> None:
        if data:
            self._shows_part_of_a_line = data[-1:] != b"\n"
            self.outlet.write(data)

    def write_line(self, shown: str, kept: str) -> None:
        """Write our own line, never inside another: ``shown`` to the outlet, ``kept`` to the log."""
        parting = b"\n" if self._shows_part_of_a_line else b""
        self.log_line(kept)
        self._prefix.end_line()
        self._show(parting + self._prefix.whole(shown))

    def log_line(self, kept: str) -> None:
        """Write our own line to the log only."""
        parting = b"" if self._prefix.at_line_start else b"\n"
        self._log.append(self._log_text.feed(parting + self._prefix.whole(kept)), self)

    def finish(self) -> None:
        """Write what was held back."""
        self._log.append(self._log_text.finish(), self)
        if self._fold is not None:
            self._show(self._fold.finish())


class Channel:
    """The end of a pipe or terminal that a command's output is read from.

    ``fd`` is -1 once all is read. ``read_at`` is when it is to be read next (time.monotonic()).
    """

    def __init__(self, fd: int, receiver: Receiver) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.receiver = receiver
        self.read_at = 0.0
        self._is_terminal = os.isatty(fd)

    def read(self, *, at_last_call: bool) -> None:
        """Pass on one chunk, or close the channel at its end; at the last call, an empty pipe is the end."""
        try:
            data = os.read(self.fd, _CHUNK_BYTES)
        except BlockingIOError:
            if not at_last_call:
                return
            data = b""
        except OSError:
            # A terminal returns EIO when its last writer has closed it.
            data = b""
        if not data:
            self.close()
            return
        few = _FEW_BYTES_OF_A_TERMINAL if self._is_terminal else _FEW_BYTES
        if len(data) < few:
            self.read_at = time.monotonic() + (_PAUSE_OF_A_TERMINAL_S if self._is_terminal else _PAUSE_S)
        elif self._is_terminal:
            data += self._more()
        self.receiver.feed(data)

    def _more(self) -> bytes:
        """Read what a writer that waits for space in the terminal still writes, up to a limit."""
        parts, size, idle = [], 0, 0
        with suppress(OSError):
            while size < _FEW_BYTES and idle < _IDLE_READS:
                try:
                    part = os.read(self.fd, _CHUNK_BYTES)
                except BlockingIOError:
                    part = b""
                    os.sched_yield()
                idle = 0 if part else idle + 1
                parts.append(part)
                size += len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Stop reading."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.receiver.finish()


def open_like(fd: int, reserved_columns: int) -> tuple[int, int]:
    """Return the reading and writing ends of a terminal if ``fd`` is one, otherwise of a pipe."""
    if not os.isatty(fd):
        return open_pipe()
    try:
        reading, writing = os.openpty()
    except OSError:
        return open_pipe()
    attributes = termios.tcgetattr(writing)
    attributes[1] &= ~termios.OPOST  # the real terminal turns line ends into its own
    termios.tcsetattr(writing, termios.TCSANOW, attributes)
    imitate_size(fd, writing, reserved_columns)
    return reading, writing


def open_pipe() -> tuple[int, int]:
    """Return the reading and writing ends of a large pipe."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    enlarge_pipe(writing)
    return reading, writing


def imitate_size(terminal: int, ours: int, reserved_columns: int) -> None:
    """Give our terminal the size of the real one, less the columns that a prefix takes; no-op for others."""
    with suppress(OSError):
        columns, rows = os.get_terminal_size(terminal)
        size = struct.pack("HHHH", rows, max(columns - reserved_columns, 1), 0, 0)
        fcntl.ioctl(ours, termios.TIOCSWINSZ, size)
