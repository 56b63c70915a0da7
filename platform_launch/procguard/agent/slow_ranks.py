"""Which ranks the launcher of a whole node finds slow: read from the events that it writes beside its log."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from platform_launch import events
from platform_launch.sentences import Sentence

_EVERY_S = 10.0
_MOST = 8


class SlowRanksReader:
    """Reads the event file that a process below the run's has open, every ten seconds."""

    def __init__(self) -> None:
        self._pid: int | None = None
        self._file: Path | None = None
        self._next_at = 0.0
        self._slow: tuple[Sentence, ...] = ()

    def read(self, pid: int | None) -> tuple[Sentence, ...]:
        """Return which ranks are slow now, by the launcher that runs below process ``pid``."""
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
                yield os.readlink(entry)  # noqa: PTH115 - the target of a link that is no path as a rule


def _slow_now(file: Path) -> tuple[Sentence, ...]:
    """Return what began and is not over yet."""
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
