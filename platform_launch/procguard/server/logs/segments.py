"""The log of a run on disk: segments ``NODE/NUMBER/GENERATION/OFFSET-LINE.log``.

A segment's name has the offset of its first byte and the number of lines before it, so nothing else needs to
be stored, and a kill -9 loses nothing. Segments in the middle may be missing.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.refused import NotFound, Unavailable
from platform_launch.procguard.api.wire import MAX_WORKERS_PER_NODE, NODE_PATTERN

_FILE = re.compile(r"(\d{16})-(\d{12})\.log")
_NODE = re.compile(NODE_PATTERN)


@dataclass(frozen=True)
class Segment:
    """One file: ``start`` is the offset of its first byte in the run, ``line`` counts the lines before it."""

    path: Path
    start: int
    line: int
    size: int

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.start + self.size


def worker_folder(root: Path, worker: str) -> Path:
    """Return the folder of a worker's runs. Raises NotFound for an invalid worker name.

    Names come from outside. The pattern starts with a letter or digit and has no slash, so no name leaves
    ``root``; node and number are separate folders, so no two workers share one.
    """
    try:
        name = WorkerName.parse(worker)
    except ValueError as error:
        raise NotFound("no-worker", worker=worker[:80]) from error
    if not _NODE.fullmatch(name.node) or name.number >= MAX_WORKERS_PER_NODE:
        raise NotFound("no-worker", worker=worker[:80])
    return root / name.node / str(name.number)


def generations(folder: Path) -> list[int]:
    """Return the runs of a worker that have a log, oldest first."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def segments(folder: Path) -> list[Segment]:
    """Return the segments of a run's log in order; none if it has no log.

    Raises Unavailable if the disk does not answer: such a log may not be empty.
    """
    found = []
    try:
        with suppress(FileNotFoundError):  # no log
            for entry in folder.iterdir():
                named = _FILE.fullmatch(entry.name)
                if named:
                    with suppress(FileNotFoundError):  # it was dropped just now
                        found.append(Segment(entry, int(named[1]), int(named[2]), entry.stat().st_size))
    except OSError as error:
        raise Unavailable("logs-not-read", reason=str(error.strerror)) from error
    return sorted(found, key=lambda segment: segment.start)


def segment_path(folder: Path, start: int, line: int) -> Path:
    """Return the path of a segment."""
    return folder / f"{start:016d}-{line:012d}.log"
