"""Reads logs: a window, the last lines, a search, or all of it as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from platform_launch.procguard.api.shapes.logs import LogMatch, LogWindow
from platform_launch.procguard.server.logs.filtering import LineFilter, LineScan, LogLine, decoded
from platform_launch.procguard.server.logs.segments import Segment, generations, segments, worker_folder

MAX_WINDOW = 1024 * 1024
MAX_MATCHES = 500
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

    def window(self, offset: int, limit: int) -> LogWindow:
        """Return at most ``limit`` bytes from ``offset``, up to the next gap."""
        segment = next((one for one in self._segments if one.end > offset), None)
        if segment is None:
            return self._answer(self.size, b"", self._line_at_end())
        start = max(offset, segment.start)
        skipped, data = _read(segment, start - segment.start, limit)
        for following in self._segments[self._segments.index(segment) + 1 :]:
            if following.start != start + len(data) or len(data) >= limit:
                break
            data += _read(following, 0, limit - len(data))[1]
        return self._answer(start, data, segment.line + skipped.count(b"\n") + 1)

    def tail(self, lines: int, limit: int) -> LogWindow:
        """Return the last ``lines`` lines, or as many as fit in ``limit`` bytes."""
        window_start = max(self.size - limit, 0)
        parts = [
            _read(segment, max(window_start - segment.start, 0), limit)[1]
            for segment in self._segments
            if segment.end > window_start and segment.start >= self._last_gap()
        ]
        data = b"".join(parts)
        position = len(data) - 1 if data.endswith(b"\n") else len(data)
        for _ in range(lines):
            position = data.rfind(b"\n", 0, position)
            if position < 0:
                break
        return self.window(self.size - len(data) + position + 1, limit)

    def at_line(self, line: int, limit: int, before: int = 200) -> LogWindow:
        """Return the part of the log around a line, with some lines before it."""
        offset = self.offset_of_line(max(1, line - before))
        return self.tail(before, limit) if offset is None else self.window(offset, limit)

    def offset_of_line(self, line: int) -> int | None:
        """Return where a line begins; None if there is no such line, or it was dropped."""
        segment = next((one for one in reversed(self._segments) if one.line < line), None)
        if segment is None:
            return 0
        data, place = _read(segment, 0, segment.size)[1], 0
        for _ in range(line - segment.line - 1):
            place = data.find(b"\n", place) + 1
            if not place:
                return None
        return segment.start + place

    def lines(self, begin: int, end: int, *, whole: bool) -> Iterator[LogLine]:
        """Yield the lines that begin from ``begin`` to before ``end``; see :meth:`blocks`."""
        every = LineScan(LineFilter())
        for offset, block in self.blocks(begin, end, whole=whole):
            yield from every.lines(offset, block)

    def blocks(self, begin: int, end: int, *, whole: bool) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that begin from ``begin`` to before ``end`` in blocks: offset and bytes.

        A line too long for a block comes in pieces. An unfinished line counts only if the log is ``whole``,
        or if bytes were dropped after it.
        """
        at = max(0, begin - 1)
        skipping = begin > 0  # the rest of the previous line
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

    def text(self, begin: int, end: int) -> str:
        """Return some bytes of the log as a line's text."""
        return decoded(self.window(begin, max(16, end - begin)).text.encode())

    def search(
        self, wanted: LineFilter, begin: int = 0, limit: int = MAX_MATCHES, context: int = 0
    ) -> LogWindow:
        """Return the selected lines from ``begin`` on, with lines of context.

        It stops when the time is up: ``more`` is set then, and ``next_offset`` is where to continue.
        """
        matches: list[LogMatch] = []
        scan, number, found, done, in_line = LineScan(wanted, context), 0, 0, -1, False
        for offset, block in self.blocks(begin, self.size, whole=True):
            if wanted.time_is_up and done >= 0 and not in_line:
                return self._answer(0, b"", 1, matches, next_offset=offset)
            if offset != done:  # the first block, or bytes were dropped before it
                number = self.line_at(offset)
            for line in scan.lines(offset, block, number):
                if line.match and found == limit:
                    return self._answer(0, b"", 1, matches, next_offset=line.offset)
                found += line.match
                match = LogMatch(line=line.number, offset=line.offset, text=line.text, match=line.match)
                matches.append(match)
            number += block.count(b"\n")
            done, in_line = offset + len(block), not block.endswith(b"\n")
        return self._answer(0, b"", 1, matches)

    def line_at(self, offset: int) -> int:
        """Return the number of the line at an offset."""
        segment = next((one for one in reversed(self._segments) if one.start <= offset), None)
        if segment is None:
            return 1
        return segment.line + _read(segment, offset - segment.start, 0)[0].count(b"\n") + 1

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

    def _last_gap(self) -> int:
        """Return the start of the part after the last gap."""
        pairs = list(zip(self._segments, self._segments[1:], strict=False))
        return next((after.start for before, after in reversed(pairs) if before.end != after.start), 0)

    def _line_at_end(self) -> int:
        if not self._segments:
            return 1
        last = self._segments[-1]
        return last.line + _read(last, 0, last.size)[1].count(b"\n") + 1

    def _answer(
        self,
        offset: int,
        data: bytes,
        line: int,
        matches: list[LogMatch] | None = None,
        *,
        next_offset: int | None = None,
    ) -> LogWindow:
        data = _whole_characters(data)
        return LogWindow(
            worker=self.worker,
            generation=self.generation,
            generations=self.generations,
            offset=offset,
            next_offset=next_offset or (self.size if matches is not None else offset + len(data)),
            size=self.size,
            line=line,
            text=data.decode(errors="replace"),
            matches=matches,
            more=next_offset is not None,
        )


def _read(segment: Segment, skip: int, limit: int) -> tuple[bytes, bytes]:
    """Return the first ``skip`` bytes of a segment and at most ``limit`` after them; nothing if it is
    gone.
    """
    try:
        with segment.path.open("rb") as file:
            return file.read(skip), file.read(min(limit, segment.size - skip))
    except FileNotFoundError:
        return b"", b""


def _whole_characters(data: bytes) -> bytes:
    """Drop a partial UTF-8 character at the end; the next window has the whole one."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return data[:-back] if length > back else data
    return data
