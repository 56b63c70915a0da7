"""One training an output folder: a lock file that says who holds it, and that a dead holder does not keep.

The holder touches the file every few seconds. A later training on the same machine sees whether the process
still lives; one on another machine watches for a few heartbeats whether they go on.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from taehv_trainer.errors import TrainingError

_NAME = ".lock"
_HEARTBEAT_S = 5.0
_SILENCE_S = 30.0  # without a heartbeat, until a holder elsewhere is taken for dead


@dataclass(frozen=True)
class Holder:
    """Who writes to a folder. ``machine`` and ``started`` tell its process from a later one of its number."""

    job: str
    host: str
    pid: int
    machine: str
    started: str

    def describe(self) -> str:
        """Say in words who that is."""
        job = f"job {self.job}, " if self.job else ""
        return f"{job}host {self.host}, pid {self.pid}"


class OutputLock:
    """Held from the first file that is written until the end of the training."""

    def __init__(
        self, folder: Path, job: str, *, heartbeat_s: float = _HEARTBEAT_S, silence_s: float = _SILENCE_S
    ):
        self._file = folder / _NAME
        self._own = Holder(job, socket.gethostname(), os.getpid(), _machine(), _started(os.getpid()))
        self._times_s = (heartbeat_s, silence_s)
        self._released = threading.Event()

    def acquire(self) -> str:
        """Take the lock. Returns in words who left it behind, or "".

        Raises TrainingError when another training lives that writes there.
        """
        left_behind = ""
        while not self._create():
            holder, identity = self._read()
            if identity is None:
                continue  # released just now
            if holder is not None and self._lives(holder, identity):
                raise TrainingError(
                    f"{self._file.parent} is the output of a training that is running: {holder.describe()}",
                    "give this one another --output-dir, or end that one first",
                )
            left_behind = "an unreadable lock" if holder is None else holder.describe()
            self._remove(holder, identity)
        threading.Thread(target=self._beat, daemon=True).start()
        return left_behind

    def release(self) -> None:
        """Give the folder free, if it is still ours."""
        self._released.set()
        if self._read()[0] == self._own:
            self._file.unlink(missing_ok=True)

    def _create(self) -> bool:
        """Write the lock beside its place and link it there, which fails if it is taken."""
        unfinished = self._file.with_name(f"{_NAME}.{self._own.host}.{self._own.pid}")
        unfinished.write_text(json.dumps(asdict(self._own)), encoding="utf-8")
        try:
            os.link(unfinished, self._file)
        except FileExistsError:
            return False
        finally:
            unfinished.unlink()
        return True

    def _read(self) -> tuple[Holder | None, int | None]:
        """Return the holder (None: not readable) and the file's inode (None: there is no lock)."""
        try:
            with self._file.open(encoding="utf-8") as file:
                identity = os.fstat(file.fileno()).st_ino
                text = file.read()
        except FileNotFoundError:
            return None, None
        try:
            return Holder(**json.loads(text)), identity
        except (ValueError, TypeError):
            return None, identity

    def _lives(self, holder: Holder, identity: int) -> bool:
        if holder.machine == self._own.machine:
            return _started(holder.pid) == holder.started
        # Clocks of two hosts differ: what counts is that the time of the file moves on while we look.
        last, deadline = self._touched(identity), time.monotonic() + self._times_s[1]
        while last is not None and time.monotonic() < deadline:
            time.sleep(min(0.2, self._times_s[0]))
            touched = self._touched(identity)
            if touched is not None and touched != last:
                return True
            last = touched
        return False

    def _touched(self, identity: int) -> int | None:
        try:
            status = self._file.stat()
        except FileNotFoundError:
            return None
        return status.st_mtime_ns if status.st_ino == identity else None

    def _remove(self, holder: Holder | None, identity: int) -> None:
        """Remove a dead holder's lock, unless another training was faster and the lock is a new one."""
        folder = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # One at a time where the file system can (NFS cannot lock a folder): of two that look at the same
            # dead lock the second would else remove the one that the first then made.
            with suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_EX)
            if self._read() == (holder, identity):
                self._file.unlink(missing_ok=True)
        finally:
            os.close(folder)

    def _beat(self) -> None:
        while not self._released.wait(self._times_s[0]):
            with suppress(OSError):  # the storage fails over, or someone removed the file: training goes on
                if self._read()[0] == self._own:
                    os.utime(self._file)


def _machine() -> str:
    """Name the running system and the process namespace in which a pid means something."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; "" when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # after the name, which may hold anything
    return "" if fields[0] in "ZX" else fields[19]
