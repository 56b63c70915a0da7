"""The sign of life of an agent: a lock on a file of its folder, which ends when its process does."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len (0: the whole file), l_pid.
_FLOCK = "hhqqi"


class AgentLock:
    """A lock that this process holds until it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def take(self) -> bool:
        """Take the lock; False when another process holds it. Raises OSError."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A lock of the open file: a POSIX lock would end when any descriptor of the file is closed.
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _request())
        except (BlockingIOError, PermissionError):
            self.release()
            return False
        return True

    def release(self) -> None:
        """Let it go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_free(path: Path) -> bool:
    """Tell whether nobody holds the lock, without ever holding it: an agent that starts now must not meet us.

    A file that is gone is free; one that cannot be asked about (a file system without locks) is not.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _request())
    except OSError:
        return False
    finally:
        os.close(fd)
    return bool(struct.unpack(_FLOCK, answer)[0] == fcntl.F_UNLCK)


def _request() -> bytes:
    return struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
