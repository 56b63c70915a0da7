"""Our standard error or output: never waits long for a reader, and may be lost."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from contextlib import suppress
from threading import Lock
from typing import TextIO

from platform_launch.console.outlet import Outlet
from platform_launch.environment import Environment

STDOUT, STDERR = 1, 2
# How long a line waits for a reader that does not read; later lines do not wait at all.
_PATIENCE_S = 1.0
_MOST_HELD_BYTES = 256 * 1024
_MOST_COLUMNS, _LOG_COLUMNS = 160, 80


def columns() -> int:
    """Return the width of standard output's terminal; 80 if it has none, or reports 0."""
    return shutil.get_terminal_size((_LOG_COLUMNS, 24)).columns or _LOG_COLUMNS


class Screen:
    """A terminal, pipe or file. If its reader is gone or stuck, the text is lost, and nothing else happens.

    ``is_terminal`` decides how lines are laid out; ``styled`` whether there are colours and boxes, which
    FORCE_COLOR enables in a pipe.
    """

    def __init__(self, number: int = STDERR) -> None:
        self._number = number
        self._outlets: dict[int, Outlet] = {}
        self._stuck = False
        self._lock = Lock()
        stream = self._stream()
        self.is_terminal = False
        with suppress(OSError, ValueError):  # closed
            self.is_terminal = stream is not None and stream.isatty()
        self.styled = self.is_terminal or "FORCE_COLOR" in Environment.of_this_process("FORCE_COLOR")

    @property
    def width(self) -> int:
        """The number of columns of a line."""
        if not self.is_terminal:
            return _LOG_COLUMNS
        with suppress(OSError, ValueError):
            return min(os.get_terminal_size(self._number).columns or _LOG_COLUMNS, _MOST_COLUMNS)
        return min(columns(), _MOST_COLUMNS)

    def write(self, text: str) -> None:
        """Write whole lines, from any thread."""
        with self._lock:
            self._write(text)

    def close(self) -> None:
        """Wait briefly for the reader, then drop what is held back."""
        with self._lock:
            for outlet in self._outlets.values():
                self._push(outlet, _PATIENCE_S)
                outlet.close()
            self._outlets.clear()

    def _stream(self) -> TextIO | None:
        return sys.stdout if self._number == STDOUT else sys.stderr

    def _write(self, text: str) -> None:
        stream = self._stream()
        if stream is None:  # started with the descriptor closed
            return
        try:
            number = stream.fileno()
        except (OSError, ValueError, AttributeError):  # a replacement that holds text
            with suppress(OSError, ValueError):
                stream.write(text.encode(errors="backslashreplace").decode())
                stream.flush()
            return
        with suppress(OSError, ValueError):
            stream.flush()  # keep the order with what was printed
        outlet = self._outlet(number)
        if outlet is None or outlet.held_bytes > _MOST_HELD_BYTES:
            return
        outlet.write(text.encode(errors="backslashreplace"))
        self._push(outlet, 0.0 if self._stuck else _PATIENCE_S)

    def _outlet(self, number: int) -> Outlet | None:
        if number not in self._outlets:
            with suppress(OSError):
                self._outlets[number] = Outlet(number, lambda _error: None)
        return self._outlets.get(number)

    def _push(self, outlet: Outlet, patience_s: float) -> None:
        """Write what is held back; wait for room no longer than ``patience_s``."""
        deadline = time.monotonic() + patience_s
        while outlet.blocked:
            poll = select.poll()
            poll.register(outlet.fd, select.POLLOUT)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self._stuck = True
                return
            outlet.flush()
        self._stuck = False
