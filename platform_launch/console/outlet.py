"""Writes to our own stdout and stderr without ever blocking in a write."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import suppress

# If a pipe is writable, a write of at most PIPE_BUF bytes does not block (pipe(7)).
_PIPE_BUF = 4096
_PIPE_BYTES = 1024 * 1024
_F_SETPIPE_SZ = 1031


class Outlet:
    """One of our own descriptors, written without ever blocking.

    What could not be written yet is held back (``blocked``); the caller waits with more until it is gone.
    ``lost`` is called once when the other side is closed; from then on, text is dropped.
    """

    def __init__(self, fd: int, lost: Callable[[OSError], None]) -> None:
        self._lost = lost
        self._held = memoryview(b"")
        enlarge_pipe(fd)
        self.fd, self._paced = _without_blocking(fd)

    @property
    def blocked(self) -> bool:
        """Whether text is held back."""
        return len(self._held) > 0

    @property
    def held_bytes(self) -> int:
        """How much text is held back."""
        return len(self._held)

    def write(self, data: bytes) -> None:
        """Write what fits now, hold the rest."""
        if self.fd < 0 or not data:
            return
        if self.blocked:
            data = bytes(self._held) + data
        self._held = memoryview(data)
        if not self._paced:
            self.flush()

    def flush(self) -> None:
        """Write what is held back; call it when the descriptor is ready."""
        try:
            while self.blocked:
                self._held = self._held[os.write(self.fd, self._held[: _PIPE_BUF if self._paced else None]) :]
                if self._paced:
                    return
        except BlockingIOError:
            pass
        except OSError as error:
            self.close()
            self._lost(error)

    def close(self) -> None:
        """Drop what is held back, and everything from now on."""
        self._held = memoryview(b"")
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def enlarge_pipe(fd: int) -> None:
    """Let a pipe hold a megabyte, so that its writer rarely waits for its reader; no-op for other files.

    The pipe stays small if the user's quota of pipe memory is used up.
    """
    with suppress(OSError):
        fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_BYTES)


def _without_blocking(fd: int) -> tuple[int, bool]:
    """Return a descriptor for the same file, and whether writes to it must be paced by waiting for room.

    O_NONBLOCK belongs to the open file, which our shell and its other programs share, so the file is opened
    a second time. If that fails (a socket, or a file of another user after ``su``), writes are paced.
    """
    kind = os.fstat(fd).st_mode
    if stat.S_ISREG(kind):
        return os.dup(fd), False
    try:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(f"/proc/self/fd/{fd}", flags), False
    except OSError:
        return os.dup(fd), True
