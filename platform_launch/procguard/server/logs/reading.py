"""Reading logs: a window, the last lines, a search, or all of it as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from platform_launch.procguard.server.logs.segments import Segment, generations, segments, worker_folder
from platform_launch.procguard.shapes import LogMatch, LogWindow

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
        self._segments = segments(folder / str(self.generation))

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

    def search(self, wanted: str, limit: int = MAX_MATCHES) -> LogWindow:
        """Return the lines that hold ``wanted``, upper and lower case being the same, first ones first."""
        matches: list[LogMatch] = []
        needle = wanted.casefold()
        for number, offset, block in self._blocks():
            if needle not in block.decode(errors="replace").casefold():
                continue  # as a rule: a log of 64 MiB has a million lines
            for line in block.split(b"\n"):
                text = line.decode(errors="replace")
                if needle in text.casefold():
                    if len(matches) == limit:
                        return self._answer(0, b"", 1, matches, more=True)
                    matches.append(LogMatch(line=number, offset=offset, text=text[:_SHOWN_OF_LINE]))
                number, offset = number + 1, offset + len(line) + 1
        return self._answer(0, b"", 1, matches)

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


def _whole_characters(data: bytes) -> bytes:
    """Cut a UTF-8 character off the end that the next window will hold whole."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return data[:-back] if length > back else data
    return data
