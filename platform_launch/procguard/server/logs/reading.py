"""The log of a run on disk, and its reader: in blocks of lines, by line number, or all of it as a stream.

A log consists of segments ``NODE/NUMBER/GENERATION/OFFSET-LINE.log``. A segment's name has the offset of its
first byte and the number of lines before it, so nothing else needs to be stored, and a kill -9 loses nothing.
Segments in the middle may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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


_LONGEST_LINE = 64 * 1024
_BLOCK = 120 * 1024
"""Bytes searched per step: small enough for the allocator's own memory and the processor's cache."""
_CHUNK = 256 * 1024


class Reader:
    """The log of one run of a worker; ``generation`` None is the newest one with a log.

    Raises NotFound for an invalid worker name. A run without a log has an empty one.
    """

    def __init__(self, root: Path, worker: str, generation: int | None = None) -> None:
        folder = worker_folder(root, worker)
        self.worker = worker
        self.generations = generations(folder)
        self.generation = max(self.generations, default=0) if generation is None else generation
        self.folder = folder / str(self.generation)
        self._segments = segments(self.folder)

    @property
    def size(self) -> int:
        """The end of the log in bytes."""
        return self._segments[-1].end if self._segments else 0

    def offset_of_line(self, line: int) -> int | None:
        """Return where a line begins; None if there is no such line, or it was dropped."""
        segment = next((one for one in reversed(self._segments) if one.line < line), None)
        if segment is None:
            return 0
        data, place = _read(segment, 0, segment.size), 0
        for _ in range(line - segment.line - 1):
            place = data.find(b"\n", place) + 1
            if not place:
                return None
        return segment.start + place

    def line_at(self, offset: int) -> int:
        """Return the number of the line at an offset."""
        segment = next((one for one in reversed(self._segments) if one.start <= offset), None)
        if segment is None:
            return 1
        return segment.line + _read(segment, 0, offset - segment.start).count(b"\n") + 1

    def numbered(self, begin: int, end: int, *, whole: bool, exact: bool) -> Iterator[tuple[int, bytes, int]]:
        """Yield :meth:`blocks` with the number of the first line of each."""
        number, done = 0, -1
        for offset, block in self.blocks(begin, end, whole=whole, exact=exact):
            if offset != done:  # the first block, or bytes were dropped before it
                number = self.line_at(offset)
            yield offset, block, number
            number += block.count(b"\n")
            done = offset + len(block)

    def blocks(
        self, begin: int, end: int, *, whole: bool, exact: bool = False
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that begin from ``begin`` to before ``end`` in blocks: offset and bytes.

        A line too long for a block comes in pieces. An unfinished line counts only if the log is ``whole``,
        or if bytes were dropped after it. ``exact``: a line or a piece begins at ``begin``.
        """
        skipping = begin > 0 and not exact  # the rest of the previous line
        at = begin - 1 if skipping else begin
        held, held_at, in_line = b"", begin, False
        for segment in self._segments:
            if segment.end <= at:
                continue
            if segment.start > at:  # bytes were dropped
                if held:
                    yield held_at, held
                held, at, held_at, skipping, in_line = b"", segment.start, segment.start, False, False
            with suppress(FileNotFoundError), segment.path.open("rb") as file:
                file.seek(at - segment.start)
                while piece := file.read(min(_BLOCK, segment.end - at)):
                    at += len(piece)
                    if skipping:
                        first = piece.find(b"\n") + 1
                        if not first:
                            continue
                        held_at, piece, skipping = at - len(piece) + first, piece[first:], False
                    data = held + piece if held else piece
                    whole_lines = data.rfind(b"\n") + 1
                    if held_at + whole_lines > end:  # not beyond the line at the end
                        last = max(0, end - held_at - 1)
                        whole_lines = data.find(b"\n", last) + 1 if held_at < end or in_line else 0
                    if whole_lines:
                        yield held_at, data[:whole_lines]
                        held, held_at, in_line = data[whole_lines:], held_at + whole_lines, False
                    elif len(data) > _LONGEST_LINE and (held_at < end or in_line):
                        yield held_at, data
                        held, held_at, in_line = b"", held_at + len(data), True
                    else:
                        held = data
                    if held_at >= end and not in_line:
                        return
        if held and whole and (held_at < end or in_line):
            yield held_at, held

    def bytes_between(self, begin: int, end: int) -> bytes:
        """Return some bytes of the log, up to the end of their segment."""
        segment = next((one for one in self._segments if one.end > begin), None)
        return b"" if segment is None else _read(segment, begin - segment.start, end - segment.start)

    def download(self) -> Iterator[bytes]:
        """Yield everything that is stored, with a marker line where bytes were dropped."""
        position = 0
        for segment in self._segments:
            with suppress(FileNotFoundError), segment.path.open("rb") as file:
                if segment.start != position:
                    yield b"\n[procguard: %d bytes left out here]\n" % (segment.start - position)
                while data := file.read(_CHUNK):
                    yield data
                position = segment.start + file.tell()


def _read(segment: Segment, begin: int, end: int) -> bytes:
    """Return some bytes of a segment; nothing if it is gone."""
    try:
        with segment.path.open("rb") as file:
            file.seek(max(0, begin))
            return file.read(max(0, min(end, segment.size) - max(0, begin)))
    except FileNotFoundError:
        return b""
