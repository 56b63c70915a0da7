"""What the output of a run shows: its steps per second, whether it still writes, and which ranks are slow."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from platform_launch import events
from platform_launch.observe.steps import StepFollower
from platform_launch.procguard.api.wire import STALLED_S
from platform_launch.sentences import Sentence

_READ_EVERY_S = 2.0
_WINDOW_S = 120.0


class StepMeter:
    """Reads a run's new output and computes steps per second; None if no steps are counted."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._follower: StepFollower | None = None
        self._next_at = 0.0
        self._steps: deque[tuple[float, int]] = deque(maxlen=64)

    def read(self, path: Path | None) -> float | None:
        """Return the step rate of the run whose output is at ``path``; cheap, never raises."""
        now = time.monotonic()
        if path != self._path:
            self._path, self._follower = path, StepFollower(path) if path is not None else None
            self._steps.clear()
        elif now < self._next_at:
            return self._rate(now)
        self._next_at = now + _READ_EVERY_S
        if self._follower is not None and (found := self._follower.read()):
            self._add(found[-1].step, now)
        return self._rate(now)

    def _add(self, step: int, now: float) -> None:
        if self._steps and step < self._steps[-1][1]:  # another epoch, or back to a checkpoint
            self._steps.clear()
        self._steps.append((now, step))

    def _rate(self, now: float) -> float | None:
        while self._steps and now - self._steps[0][0] > _WINDOW_S:
            self._steps.popleft()
        if len(self._steps) < 2:
            return None
        (first_at, first), (last_at, last) = self._steps[0], self._steps[-1]
        return (last - first) / (last_at - first_at)


_WRITES = 5
"""Pauses needed before the rhythm of a run is known."""
_LONGEST_S = STALLED_S / 3
"""A run with longer pauses has no rhythm: it may write once per evaluation."""


class OutputRhythm:
    """Tracks when an output was last written; call :meth:`read` about every second."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._written_at: float | None = None
        self._pauses: deque[float] = deque(maxlen=64)

    def read(self, path: Path | None) -> float | None:
        """Return how long a run has written nothing; None without a rhythm, or if it cannot be read."""
        if path != self._path:
            self._path, self._written_at = path, None
            self._pauses.clear()
        if path is None:
            return None
        try:
            written_at = path.stat().st_mtime
        except OSError:
            return None
        if self._written_at is not None and written_at > self._written_at:
            self._pauses.append(written_at - self._written_at)
        self._written_at = written_at
        regular = len(self._pauses) >= _WRITES and max(self._pauses) < _LONGEST_S
        return max(0.0, time.time() - written_at) if regular else None

    def stalled(self, path: Path) -> bool:
        """Return whether a run with a rhythm has stopped writing."""
        silent_s = self.read(path)
        return silent_s is not None and silent_s > STALLED_S


_EVERY_S = 10.0
_MOST = 8


class SlowRanksReader:
    """Reads the event file of a launcher below the run's process, every ten seconds."""

    def __init__(self) -> None:
        self._pid: int | None = None
        self._file: Path | None = None
        self._next_at = 0.0
        self._slow: tuple[Sentence, ...] = ()

    def read(self, pid: int | None) -> tuple[Sentence, ...]:
        """Return the currently slow ranks, as reported by the launcher below process ``pid``."""
        if pid != self._pid:
            self._pid, self._file, self._next_at, self._slow = pid, None, 0.0, ()
        if pid is not None and time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + _EVERY_S
            self._file = self._file or _event_file(pid)
            self._slow = _slow_now(self._file) if self._file else ()
        return self._slow


def _event_file(pid: int) -> Path | None:
    with suppress(psutil.Error, OSError):
        first = psutil.Process(pid)
        for process in (first, *first.children(recursive=True)):
            for descriptor in _descriptors(process.pid):
                if descriptor.endswith(events.SUFFIX):
                    return Path(descriptor)
    return None


def _descriptors(pid: int) -> Iterator[str]:
    folder = Path("/proc", str(pid), "fd")
    with suppress(OSError):
        for entry in list(folder.iterdir()):
            with suppress(OSError):
                yield os.readlink(entry)  # noqa: PTH115 - the target is usually not a path


def _slow_now(file: Path) -> tuple[Sentence, ...]:
    """Return the slow ranks that have not recovered."""
    slow: dict[str, list[object]] = {}
    for event in events.read(file) or ():
        ranks, headlines = str(event.fields.get("ranks", "")), event.fields.get("headlines")
        if event.id == "slow-rank" and isinstance(headlines, list):
            slow[ranks] = headlines
        elif event.id == "slow-rank-over":
            slow.pop(ranks, None)
    found = []
    for headline in (one for headlines in slow.values() for one in headlines):
        with suppress(ValueError):
            found.append(Sentence.read(headline))
    return tuple(found[:_MOST])
