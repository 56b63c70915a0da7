"""Appending to logs: every byte once, whatever is sent twice, and never beyond a limit."""

from __future__ import annotations

import errno
import shutil
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from platform_launch.procguard.api.refused import RequestRefused, Unavailable
from platform_launch.procguard.server.logs.segments import (
    Segment,
    generations,
    segment_path,
    segments,
    worker_folder,
)
from platform_launch.procguard.server.logs.times import ArrivalClock, LogTime

_SEGMENTS = 16
_KEPT_AT_THE_BEGINNING = 4
KEPT_RUNS = 20
"""Runs of a worker whose logs are kept."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LOCKS = 64


class Full(RequestRefused):
    """The disk under the logs is full. The bytes stay with the agent, which sends them again."""

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

    Thread-safe. :meth:`size` is answered from memory once a run was looked at.
    """

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root = root
        self.time = LogTime()
        self._segment_bytes = max(limit_bytes // _SEGMENTS, 4096)
        self._runs: dict[tuple[str, int], _Run] = {}
        self._without: dict[str, int] = {}  # a worker's newest run that has no log yet
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def size(self, worker: str, generation: int) -> int:
        """Return how many bytes of a run's log were taken so far; 0 while the disk does not answer.

        A heartbeat asks this: it must go on without the disk. :meth:`append` takes nothing then.
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
        """Take bytes that begin at ``offset`` of a run's log, and return how many it has now.

        What is there already is skipped; nothing is taken where bytes before ``offset`` are missing. Bytes
        of a run so old that its log is no longer kept are dropped as if taken. Raises NotFound for what is
        no worker's name, Full, and Unavailable for other faults of the disk.
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
                self._runs.pop((worker, generation), None)  # what was written is seen when it is looked at
                raise _refusal(error) from error
            return run.size

    def drop(self, worker: str, generation: int) -> None:
        """Remove the log of a run."""
        with self._locks[hash((worker, generation)) % _LOCKS]:
            shutil.rmtree(worker_folder(self.root, worker) / str(generation), ignore_errors=True)
            self._runs.pop((worker, generation), None)

    def _scan(self, worker: str, generation: int) -> _Run:
        folder = worker_folder(self.root, worker) / str(generation)
        run = _Run(folder, segments(folder))
        # Runs without a log are not remembered: there is one more at every start, for ever.
        return self._runs.setdefault((worker, generation), run) if run.segments else run

    def _make_room(self, worker: str, generation: int) -> bool:
        """Drop the logs of runs that are too old; False when this one would be."""
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
        run.clock.note(run.size, self.time.now_ms(run.clock.last_ms))
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
            run.segments.pop(_KEPT_AT_THE_BEGINNING).path.unlink(missing_ok=True)


def _refusal(error: OSError) -> RequestRefused:
    if error.errno in _NO_ROOM:
        return Full("the server's disk is full: no log can be taken", "make room under its data folder")
    return Unavailable(f"the server cannot write logs: {error.strerror}", "look at its data folder")
