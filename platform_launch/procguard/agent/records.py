"""The records of a run on disk, which outlive its agent and its supervisor.

    launch.json      by the agent: what to start, and how; the supervisor deletes it after reading it
    agent.json       by the agent only: {ready: BOOT, starting: {boot, at}, stop: {reason, grace_s}}
    supervisor.json  by whoever creates it first, and then only by it. The supervisor: {pid, started,
                     training, ending, exited, ended, verdict, why, line}. An agent that gave up: {void}
    output.log       the output

Each is written atomically. A reason is the document of a sentence. Times are seconds of CLOCK_BOOTTIME, which
no administrator sets; ``boot`` is the machine's boot id.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from platform_launch.files import PRIVATE, write_new, write_whole
from platform_launch.hardware import running
from platform_launch.procguard.api.english import english
from platform_launch.sentences import Sentence, quoted

MARKER = "PROCGUARD_RUN"
"""Carried by every process of a run, ``INSTANCE:NUMBER:GENERATION``, in case its supervisor disappears."""

LAUNCH = "launch.json"
AGENT = "agent.json"
SUPERVISOR = "supervisor.json"
LOG = "output.log"

_RESERVED_BYTES = 16 * 1024
# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len (0: the whole file), l_pid.
_FLOCK = "hhqqi"


def clock_s() -> float:
    """Return the seconds since boot, including suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def now() -> dict[str, object]:
    """Return the current time as fields of a record."""
    return {"boot": running.boot_id(), "at": clock_s()}


def write(path: Path, record: Mapping[str, object]) -> None:
    """Replace a record; only its owner may read it. Raises OSError."""
    write_whole(path, json.dumps(record), mode=PRIVATE)


def update(path: Path, **fields: object) -> None:
    """Change fields of a record that nobody else writes. Raises OSError."""
    write(path, {**(read(path) or {}), **fields})


def claim(path: Path, record: Mapping[str, object]) -> bool:
    """Write a record if there is none; only one of several concurrent attempts succeeds. Raises OSError."""
    try:
        write_new(path, json.dumps(record), mode=PRIVATE)
    except FileExistsError:
        return False
    return True


def read(path: Path) -> dict[str, Any] | None:
    """Return a record; None if there is none, empty if it is invalid.

    Raises OSError if the disk does not answer: the record may or may not exist.
    """
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def reason_of(record: Mapping[str, object], name: str = "reason") -> Sentence | None:
    """Return a record's reason, or just its code if this version has no template for it."""
    try:
        found = Sentence.read(record.get(name))
    except ValueError:
        return None
    try:
        english(found)
    except KeyError:
        return quoted(found.code)
    return found


@dataclass(frozen=True)
class RunLaunch:
    """What a run's supervisor starts. ``environment`` is the command's whole environment.

    ``lock`` is the file that a living agent holds; the run continues ``orphan_after_s`` without one.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    grace_s: float
    lock: str
    orphan_after_s: float

    def write(self, folder: Path) -> None:
        """Write it to a run's folder. Raises OSError."""
        write(folder / LAUNCH, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> RunLaunch:
        """Read what :meth:`write` wrote. Raises KeyError or TypeError if it is invalid."""
        found = read(folder / LAUNCH) or {}
        return cls(**{**found, "command": tuple(found["command"])})

    @staticmethod
    def forget(folder: Path) -> None:
        """Delete it: it contains the command's whole environment, and is read only once."""
        with suppress(OSError):
            (folder / LAUNCH).unlink(missing_ok=True)


class SupervisorRecord:
    """The supervisor's record of its run.

    Disk space is reserved for the two entries that must be written: the exit and the end.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / SUPERVISOR
        self._fields: dict[str, object] = {}
        self._lock = threading.Lock()
        self._rooms = [self._path.with_name(f".{SUPERVISOR}.{secrets.token_hex(6)}") for _ in range(2)]
        for room in self._rooms:
            write_new(room, b" " * _RESERVED_BYTES, mode=PRIVATE)

    def claim(self) -> bool:
        """Become this run's supervisor; False if there is one, or if the agent has given the run up."""
        me = running.find(os.getpid())
        self._fields = {"pid": os.getpid(), "started": me.started if me else 0}
        return claim(self._path, self._fields)

    def write_if_possible(self, **fields: object) -> None:
        """Write something useful but optional; a full disk must not end the run."""
        with self._lock, suppress(OSError):
            self._fields |= fields
            write(self._path, self._fields)

    def write(self, **fields: object) -> None:
        """Write something required, into reserved space. Raises OSError."""
        with self._lock:
            self._fields |= fields
            room, data = self._rooms.pop(), json.dumps(self._fields).encode()
            assert len(data) <= _RESERVED_BYTES
            with room.open("r+b") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            room.replace(self._path)


class AgentLock:
    """An agent's sign of life: a lock on a file in its folder, released when the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def acquire(self) -> bool:
        """Acquire the lock; False if another process holds it. Raises OSError."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A lock of the open file: a POSIX lock would be released when any descriptor of the file is
            # closed.
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _flock())
        except (BlockingIOError, PermissionError):
            self.release()
            return False
        return True

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_free(path: Path) -> bool:
    """Return whether nobody holds an agent's lock, without acquiring it: an agent may be starting.

    A missing file counts as free; a file system without locks does not.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _flock())
    except OSError:
        return False
    finally:
        os.close(fd)
    return bool(struct.unpack(_FLOCK, answer)[0] == fcntl.F_UNLCK)


def _flock() -> bytes:
    return struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
