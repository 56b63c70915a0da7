"""Reading logs: a window, the last lines, a search, or all of it as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from platform_launch.procguard.api.shapes.logs import LogMatch, LogWindow
from platform_launch.procguard.server.logs.filtering import LineFilter, LogLine
from platform_launch.procguard.server.logs.segments import Segment, generations, segments, worker_folder

MAX_WINDOW = 1024 * 1024
MAX_MATCHES = 500
_LONGEST_LINE = 64 * 1024
_BLOCK = 64 * 1024
"""Looked at in one step, during which nothing else of this process runs: well below a millisecond."""
_SHOWN_OF_LINE = 2_000
_CHUNK = 256 * 1024


class Reader:
    """The log of one run of a worker; ``generation`` None is the newest that has a log.

    Raises NotFound for what is no worker's name. A run without a log is an empty one.
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
        """Return at most ``limit`` bytes from ``offset``. It ends where bytes were left out."""
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
        """Return the last ``lines`` lines, or as many of them as ``limit`` bytes hold."""
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
        """Return the part of the log in which a line is, with some lines before it."""
        offset = self.offset_of_line(max(1, line - before))
        return self.tail(before, limit) if offset is None else self.window(offset, limit)

    def offset_of_line(self, line: int) -> int | None:
        """Return where a line begins; None where there is none of that number, or it was left out."""
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
        """Yield the lines that begin from ``begin`` to before ``end``.

        One that has not ended is a line only if the log is ``whole``.
        """
        for start, data in self._stretches(max(0, begin - 1), end + _LONGEST_LINE):
            place = data.find(b"\n") + 1 if begin and start == begin - 1 else 0
            if not place and begin and start == begin - 1:
                continue  # the line that began before goes on
            while start + place < end and place < len(data):
                after = data.find(b"\n", place)
                if after < 0:
                    if (
                        whole or start + len(data) < self.size
                    ):  # bytes are left out after it, or it is monstrous
                        yield LogLine(start + place, _decoded(data[place:]))
                    break
                yield LogLine(start + place, _decoded(data[place:after]))
                place = after + 1

    def _stretches(self, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield what is kept of a part of the log, each stretch without a gap: its offset and its bytes."""
        start, parts, at = 0, list[bytes](), -1
        for segment in self._segments:
            if segment.end <= begin or segment.start >= end:
                continue
            skip = max(0, begin - segment.start)
            part = _read(segment, skip, end - segment.start - skip)[1]
            if segment.start + skip != at:
                if parts:
                    yield start, b"".join(parts)
                start, parts = segment.start + skip, []
            parts.append(part)
            at = segment.start + skip + len(part)
        if parts:
            yield start, b"".join(parts)

    def text(self, begin: int, end: int) -> str:
        """Return some bytes of the log as a line's text."""
        return _decoded(self.window(begin, max(16, end - begin)).text.encode())

    def search(self, wanted: LineFilter, limit: int = MAX_MATCHES, context: int = 0) -> LogWindow:
        """Return the lines that are wanted, first ones first, with so many lines before and after each."""
        matches: list[LogMatch] = []
        found = 0
        for line in wanted.with_context(self._all_lines(None if context else wanted), context):
            if line.match and found == limit:
                return self._answer(0, b"", 1, matches, more=True)
            found += line.match
            text = line.text[:_SHOWN_OF_LINE]
            matches.append(LogMatch(line=line.number, offset=line.offset, text=text, match=line.match))
        return self._answer(0, b"", 1, matches)

    def _all_lines(self, wanted: LineFilter | None) -> Iterator[LogLine]:
        """Yield every line, less those of whole blocks that hold nothing that is wanted."""
        for number, offset, block in self._blocks():
            if wanted is not None and not wanted.may_hold(block.decode(errors="replace")):
                continue  # as a rule: a log of 64 MiB has a million lines
            for line in block.removesuffix(b"\n").split(b"\n"):
                yield LogLine(offset, line.decode(errors="replace"), number=number)
                number, offset = number + 1, offset + len(line) + 1

    def download(self) -> Iterator[bytes]:
        """Yield all that is kept. A line of our own stands where bytes were left out."""
        position = 0
        for segment in self._segments:
            with suppress(FileNotFoundError), segment.path.open("rb") as file:
                if segment.start != position:
                    yield b"\n[procguard: %d bytes left out here]\n" % (segment.start - position)
                while data := file.read(_CHUNK):
                    yield data
                position = segment.start + file.tell()

    def _blocks(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield some whole lines at a time, number and offset of the first too; a monstrous one in pieces."""
        held, number, offset = b"", 1, 0
        for segment in self._segments:
            if segment.start != offset + len(held):
                if held:
                    yield number, offset, held
                held, number, offset = b"", segment.line + 1, segment.start
            data, place = held + _read(segment, 0, segment.size)[1], 0
            while end := data.rfind(b"\n", place, place + _BLOCK) + 1 or data.find(b"\n", place) + 1:
                block = data[place:end]
                yield number, offset, block
                number, offset, place = number + block.count(b"\n"), offset + len(block), end
            held = data[place:]
            if len(held) > _LONGEST_LINE:
                yield number, offset, held
                held, offset = b"", offset + len(held)
        if held:
            yield number, offset, held

    def _last_gap(self) -> int:
        """Return where the part begins after which nothing was left out."""
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
        more: bool = False,
    ) -> LogWindow:
        data = _whole_characters(data)
        return LogWindow(
            worker=self.worker,
            generation=self.generation,
            generations=self.generations,
            offset=offset,
            next_offset=self.size if matches is not None else offset + len(data),
            size=self.size,
            line=line,
            text=data.decode(errors="replace"),
            matches=matches,
            more=more,
        )


def _read(segment: Segment, skip: int, limit: int) -> tuple[bytes, bytes]:
    """Return the first ``skip`` bytes of a segment and at most ``limit`` after them; none if it is gone."""
    try:
        with segment.path.open("rb") as file:
            return file.read(skip), file.read(min(limit, segment.size - skip))
    except FileNotFoundError:
        return b"", b""


def _decoded(line: bytes) -> str:
    return line[:_SHOWN_OF_LINE].decode(errors="replace")


def _whole_characters(data: bytes) -> bytes:
    """Cut a UTF-8 character off the end that the next window will hold whole."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return data[:-back] if length > back else data
    return data
