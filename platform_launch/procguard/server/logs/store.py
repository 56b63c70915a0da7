"""Logs on disk: every byte once, even if sent twice, and within limits."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from platform_launch.procguard.api.refused import NotFound, RequestRefused, Unavailable
from platform_launch.procguard.server.logs.reading import (
    Segment,
    generations,
    segment_path,
    segments,
    worker_folder,
)
from platform_launch.procguard.server.logs.times import ArrivalClock, LogTime

_SEGMENTS = 16
_FIRST_SEGMENTS = 4
KEPT_RUNS = 20
"""Runs of a worker whose logs are kept."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LOCKS = 64


class Full(RequestRefused):
    """The disk for the logs is full. The agent keeps the bytes and sends them again."""

    status = 507


@dataclass
class _Run:
    folder: Path
    segments: list[Segment]
    clock: ArrivalClock | None = None

    @property
    def size(self) -> int:
        return self.segments[-1].end if self.segments else 0


class Logs:
    """The logs of all runs below ``root``, at most ``limit_bytes`` each: the beginning and the newest part.

    Thread-safe. :meth:`size` answers from memory once it has seen a run.
    """

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root = root
        self.time = LogTime()
        self._segment_bytes = max(limit_bytes // _SEGMENTS, 4096)
        self._runs: dict[tuple[str, int], _Run] = {}
        self._without: dict[str, int] = {}  # a worker's newest run that has no log yet
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def size(self, worker: str, generation: int) -> int:
        """Return how many bytes of a run's log are stored; 0 while the disk does not answer.

        Heartbeats use this and must not depend on the disk. :meth:`append` stores nothing then.
        """
        run = self._runs.get((worker, generation))
        if run is not None:
            return run.size
        if self._without.get(worker) == generation:
            return 0
        try:
            size = self._scan(worker, generation).size
        except Unavailable:
            return 0
        if not size:
            self._without[worker] = generation
        return size

    def append(self, worker: str, generation: int, offset: int, data: bytes) -> int:
        """Store bytes that begin at ``offset`` of a run's log, and return how many there are now.

        Existing bytes are skipped; nothing is stored if bytes before ``offset`` are missing. Bytes of a run
        so old that its log is no longer kept are dropped as if stored. Raises NotFound for an invalid worker
        name, Full, and Unavailable for other failures of the disk.
        """
        with self._locks[hash((worker, generation)) % _LOCKS]:
            run = self._runs.get((worker, generation)) or self._scan(worker, generation)
            if not run.segments and not self._make_room(worker, generation):
                return offset + len(data)
            new = data[max(run.size - offset, 0) :]
            if offset > run.size or not new:
                return run.size
            self._runs[(worker, generation)] = run
            self._without.pop(worker, None)
            try:
                self._write(run, new)
            except OSError as error:
                self._runs.pop((worker, generation), None)  # the next scan sees what was written
                raise _refusal(error) from error
            return run.size

    def drop(self, worker: str, generation: int) -> None:
        """Delete the log of a run."""
        with self._locks[hash((worker, generation)) % _LOCKS]:
            shutil.rmtree(worker_folder(self.root, worker) / str(generation), ignore_errors=True)
            self._runs.pop((worker, generation), None)

    def _scan(self, worker: str, generation: int) -> _Run:
        folder = worker_folder(self.root, worker) / str(generation)
        run = _Run(folder, segments(folder))
        # Runs without a log are not cached: every start adds one.
        return self._runs.setdefault((worker, generation), run) if run.segments else run

    def _make_room(self, worker: str, generation: int) -> bool:
        """Delete the logs of runs that are too old; False if this one would be."""
        folder = worker_folder(self.root, worker)
        kept = [one for one in generations(folder) if one != generation]
        newer = sum(one > generation for one in kept)
        for old in kept[: max(len(kept) - KEPT_RUNS + 1, 0)]:
            if old < generation:
                shutil.rmtree(folder / str(old), ignore_errors=True)
                self._runs.pop((worker, old), None)
        return newer < KEPT_RUNS

    def _write(self, run: _Run, data: bytes) -> None:
        run.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if run.clock is None:
            run.clock = ArrivalClock(run.folder)
        run.clock.record(run.size, self.time.now_ms(run.clock.last_ms))
        while data:
            if not run.segments or run.segments[-1].size >= self._segment_bytes:
                self._begin_segment(run)
            last = run.segments[-1]
            with last.path.open("ab", buffering=0) as file:
                written = file.write(data[: self._segment_bytes - last.size])
            run.segments[-1] = replace(last, size=last.size + written)
            data = data[written:]

    def _begin_segment(self, run: _Run) -> None:
        line = 0
        if run.segments:
            last = run.segments[-1]
            line = last.line + last.path.read_bytes().count(b"\n")
        run.segments.append(Segment(segment_path(run.folder, run.size, line), run.size, line, 0))
        while len(run.segments) > _SEGMENTS:
            run.segments.pop(_FIRST_SEGMENTS).path.unlink(missing_ok=True)


def _refusal(error: OSError) -> RequestRefused:
    if error.errno in _NO_ROOM:
        return Full("disk-full")
    return Unavailable("logs-not-written", reason=str(error.strerror))


ROOM_EVERY_S = 60.0
# Beyond the limit, some extra room is made at once.
_TARGET_SHARE = 0.9
# Agents send the logs of a worker's two newest runs: a deleted one would be sent again.
_SENT_RUNS = 2


@dataclass(frozen=True)
class _StoredRun:
    """The log of a run: its last modification (seconds since the epoch), and its bytes."""

    written: float
    size: int
    worker: str
    generation: int


def keep_within(limit_bytes: int, logs: Logs, workers: Collection[str]) -> str:
    """Delete the oldest logs beyond a limit; return why they still exceed it, empty if they do not."""
    if make_room(limit_bytes, logs, workers) <= limit_bytes:
        return ""
    # Without a size: a reason that differs each time would be logged each time.
    return (
        f"they take more than {limit_bytes / 2**30:g} GiB although only the two newest runs of each worker "
        "are left; raise logs_limit_gib, or lower log_limit_mib"
    )


def make_room(limit_bytes: int, logs: Logs, workers: Collection[str]) -> int:
    """Delete what exceeds the limit, and return the bytes that are left.

    ``workers`` may still send; every log of other, removed nodes may be deleted.
    """
    stored = _stored_runs(logs.root)
    total = sum(run.size for run in stored)
    if total <= limit_bytes:
        return total
    known, runs = set(workers), dict[str, list[int]]()
    for run in stored:
        runs.setdefault(run.worker, []).append(run.generation)
    for run in sorted(stored, key=lambda run: run.written):
        if total <= limit_bytes * _TARGET_SHARE:
            break
        sent = sorted(runs[run.worker])[-_SENT_RUNS:] if run.worker in known else []
        if run.generation not in sent:
            logs.drop(run.worker, run.generation)
            total -= run.size
    return total


def _stored_runs(root: Path) -> list[_StoredRun]:
    """Return the logs below ``root``, ignoring foreign files and those that disappear meanwhile."""
    found = []
    for folder in root.glob("*/*"):
        worker = f"{folder.parent.name}-{folder.name}"
        with suppress(NotFound):
            for generation in generations(worker_folder(root, worker)):
                with suppress(FileNotFoundError):
                    files = [entry.stat() for entry in (folder / str(generation)).iterdir()]
                    written = max((file.st_mtime for file in files), default=0.0)
                    found.append(_StoredRun(written, sum(file.st_size for file in files), worker, generation))
    return found
