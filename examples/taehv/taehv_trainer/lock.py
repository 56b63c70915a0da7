"""One run per output folder: a POSIX record lock, which the kernel releases when the process ends.

Such a lock holds between the clients of NFS, Lustre (mounted with flock) and GPFS too, and forked loader
workers do not inherit it. The text in the file is for people.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from pathlib import Path

from taehv_trainer.errors import TrainingError

# A file server keeps the locks of a client that crashed until its lease ends: 90 s by NFS's default.
_LEASE_S = 100.0
_RETRY_S = 0.5


class OutputLock:
    """Held from the first file that is written until the end of the run."""

    def __init__(self, folder: Path, job: str, *, lease_s: float = _LEASE_S) -> None:
        """``job`` names the run to a person whose run is refused because of it; may be ""."""
        self._path = folder / ".lock"
        self._owner = f"{f'job {job}, ' if job else ''}host {socket.gethostname()}, pid {os.getpid()}"
        self._lease_s = lease_s
        self._file = self._path.open("a+", encoding="utf-8")

    def acquire(self) -> str:
        """Take the lock. Returns a warning if this file system cannot lock files, otherwise "".

        Raises TrainingError if another run holds it.
        """
        deadline = time.monotonic() + self._lease_s
        while not (taken := self._try()):
            self._file.seek(0)
            owner = self._file.read().strip()
            elsewhere = f"host {socket.gethostname()}," not in owner
            if not elsewhere or time.monotonic() > deadline:
                self._file.close()
                raise TrainingError(
                    f"{self._path.parent} is the output folder of a running job: {owner or 'unknown'}",
                    "pass another --output-dir, or stop that job first",
                )
            time.sleep(_RETRY_S)
        if taken == "locked":
            self._file.truncate(0)
            self._file.write(self._owner + "\n")
            self._file.flush()
            return ""
        return f"{self._path.parent} is on a file system without locks: let no other run write there"

    def release(self) -> None:
        """Release the lock. The file stays: deleting it would let two runs hold locks on two files."""
        self._file.truncate(0)
        self._file.close()

    def _try(self) -> str:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return ""
            return "unsupported"
        return "locked"
