"""The log of a worker, or those of all ranks of a run merged by time of arrival, a page at a time.

A page is correct wherever it begins: it ends where the first rank's log was not read further, and the next
one begins there. A single log is shown up to its last byte, with line numbers; its unfinished last line comes
again with the next page.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from platform_launch.procguard.server.logs.filtering import SHOWN_OF_LINE, LineFilter, LineScan, LogLine
from platform_launch.procguard.server.logs.reading import Reader
from platform_launch.procguard.server.logs.store import Logs
from platform_launch.procguard.server.logs.times import ArrivalMarks

_READ_AHEAD = 64 * 1024 * 1024
"""Bytes read of all ranks together before one of them is read further."""
_LEAST, _MOST = 8 * 1024, 1024 * 1024
"""Bytes of one rank per step."""
_SETTLED_MS = 2_000
"""Nothing can come before a line of this age any more: agents send at their own pace."""
_MOST_RANKS = 100_000
_CURSOR = re.compile(r"(\d{1,15})-(\d{1,6})-(\d{1,16})")


@dataclass(frozen=True, order=True)
class LogPlace:
    """A position among the lines of all ranks: time of arrival, rank, and offset there."""

    at_ms: int
    rank: int
    offset: int

    def __str__(self) -> str:
        return f"{self.at_ms}-{self.rank}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> LogPlace | None:
        """Parse what ``str`` wrote; None if it is invalid."""
        found = _CURSOR.fullmatch(text)
        return cls(*(int(part) for part in found.groups())) if found else None


@dataclass(frozen=True)
class MergedLine:
    """A line with its position and worker."""

    place: LogPlace
    worker: str
    line: LogLine


@dataclass(frozen=True)
class MergedPage:
    """Lines in order. ``before`` and ``after`` are where to continue; None if there is nothing more now.

    ``more``: what follows can be read at once. ``read`` of ``size`` bytes are before ``after``. A last line
    that may still grow is at ``after``.
    """

    lines: list[MergedLine]
    before: LogPlace | None
    after: LogPlace
    more: bool
    read: int
    size: int


@dataclass(frozen=True)
class _RankLog:
    rank: int
    worker: str
    reader: Reader
    marks: ArrivalMarks
    whole: bool
    """Whether a last line without a newline counts."""
    alone: bool
    """Whether it is the only log: then its lines are numbered and shown in full."""

    def place(self, offset: int) -> LogPlace:
        return LogPlace(self.marks.at_ms(offset), self.rank, offset)

    def offset_of(self, place: LogPlace) -> int:
        """Return where the lines begin that are at this position or after it."""
        first = self.marks.offset_at(place.at_ms)
        if self.rank > place.rank:
            return min(first, self.reader.size)
        after = self.marks.offset_at(place.at_ms + 1)
        if self.rank == place.rank:
            after = max(first, min(after, place.offset))
        return min(after, self.reader.size)

    def scan(self, wanted: LineFilter, context: int = 0) -> LineScan:
        return LineScan(wanted, context, _MOST if self.alone else SHOWN_OF_LINE)

    def blocks(self, begin: int, end: int, *, exact: bool = False) -> Iterator[tuple[int, bytes, int]]:
        """Yield blocks of lines: offset, bytes, and the number of the first line if it is alone."""
        if self.alone:
            return self.reader.numbered(begin, end, whole=self.whole, exact=exact)
        blocks = self.reader.blocks(begin, end, whole=self.whole, exact=exact)
        return ((offset, block, 0) for offset, block in blocks)

    def lines(self, begin: int, end: int) -> list[LogLine]:
        scan = self.scan(LineFilter())
        return [line for block in self.blocks(begin, end) for line in scan.lines(*block)]

    @property
    def open(self) -> bool:
        """Whether the last line has no newline yet."""
        size = self.reader.size
        return self.reader.bytes_between(size - 1, size) != b"\n"


class MergedLog:
    """The logs of a run's ranks: ``workers`` are pairs of rank and worker."""

    def __init__(
        self, logs: Logs, workers: Sequence[tuple[int, str]], generation: int, *, ended: bool
    ) -> None:
        self._ended = ended
        alone = len(workers) == 1
        found = []
        for rank, worker in workers:
            reader = Reader(logs.root, worker, generation)
            if reader.size:
                marks = ArrivalMarks.read(reader.folder)
                found.append(_RankLog(rank, worker, reader, marks, ended or alone, alone))
        self._logs = found
        newest_ms = max((log.marks.newest_ms for log in found), default=0)
        self._now_ms = max(newest_ms, logs.time.now_ms()) if ended else logs.time.now_ms(newest_ms)

    def of_line(self, rank: int, line: int) -> LogPlace | None:
        """Return the position of a line of a rank's log."""
        log = next((one for one in self._logs if one.rank == rank), None)
        offset = log.reader.offset_of_line(line) if log else None
        return None if log is None or offset is None else log.place(offset)

    def of_offset(self, offset: int) -> LogPlace | None:
        """Return the position of the line at an offset of the only log."""
        return self._logs[0].place(offset) if self._logs and offset < self._logs[0].reader.size else None

    def before(self, place: LogPlace | None, most: int) -> MergedPage:
        """Return the last lines before a position, or the last ones of all."""
        until = place or self._complete_until()
        floor: LogPlace | None = None
        lines: list[MergedLine] = []
        each = min(_MOST // 4, max(_LEAST, _READ_AHEAD // 16 // max(1, len(self._logs))))
        for log in self._logs:
            end = log.offset_of(until)
            begin = max(0, end - each)
            part = log.lines(begin, end)
            if begin and not part and end > begin:  # a piece of a very long line
                part = [LogLine(begin, log.reader.bytes_between(begin, end).decode(errors="replace"))]
            lines += _placed(log, part)
            if begin and part:
                first = log.place(part[0].offset)
                floor = first if floor is None else max(floor, first)
        kept = sorted(
            (one for one in lines if floor is None or one.place >= floor), key=lambda one: one.place
        )
        trimmed = kept[-most:]
        earlier = floor is not None or len(trimmed) < len(kept)
        after = trimmed[-1].place if trimmed and place is None and self._open else until
        before = trimmed[0].place if earlier and trimmed else None
        sizes = [log.reader.size for log in self._logs]
        return MergedPage(trimmed, before, after, False, *self._progress(after, sizes))

    def around(self, place: LogPlace, most: int) -> MergedPage:
        """Return the lines before a position and those from it on."""
        earlier, later = self.before(place, most // 2), self.after(place, most - most // 2, LineFilter())
        return replace(later, lines=earlier.lines + later.lines, before=earlier.before)

    def after(self, place: LogPlace | None, most: int, wanted: LineFilter, context: int = 0) -> MergedPage:
        """Return the first selected lines from a position on, or the first ones of all.

        The log that is furthest behind is read further, until there are enough lines or the time is up. What
        other logs have beyond that position is left for the next page.
        """
        begin_at, complete_until = place or LogPlace(0, 0, 0), self._complete_until()
        each = min(_MOST, max(_LEAST, _READ_AHEAD // max(1, len(self._logs))))
        scans = [log.scan(wanted, context) for log in self._logs]
        ends = [log.offset_of(complete_until) for log in self._logs]
        begins = [log.offset_of(begin_at) for log in self._logs]
        behind = [
            (max(begin_at, log.place(begin)), index, begin)
            for index, (log, begin) in enumerate(zip(self._logs, begins, strict=True))
            if begin < ends[index]
        ]
        heapq.heapify(behind)
        lines: list[MergedLine] = []
        last_line = 0
        while behind:
            known_to, index, begin = behind[0]
            enough = sum(one.place < known_to for one in lines) > most or _length(lines) > _MOST
            if lines and (wanted.time_is_up or enough):
                break
            if known_to > begin_at and wanted.time_is_up:
                break
            log, stop = self._logs[index], min(ends[index], begin + each)
            part: list[LogLine] = []
            for offset, block, number in log.blocks(begin, stop, exact=log.alone):
                last_line, stop = offset + block.rfind(b"\n") + 1, max(stop, offset + len(block))
                part += islice(scans[index].lines(offset, block, number), most + 1 - len(part))
                if len(part) > most:
                    stop = part.pop().offset
                    break
            lines += _placed(log, part)
            if stop < ends[index]:
                heapq.heapreplace(behind, (log.place(stop), index, stop))
            else:
                heapq.heappop(behind)
        ceiling = behind[0][0] if behind else complete_until
        kept = sorted((one for one in lines if begin_at <= one.place < ceiling), key=lambda one: one.place)
        more = bool(behind)
        if len(kept) > most:
            ceiling, more = kept[most].place, True
        after = self._logs[0].place(last_line) if not more and self._open else max(begin_at, ceiling)
        before = begin_at if place else None
        return MergedPage(kept[:most], before, after, more, *self._progress(after, ends))

    @property
    def _open(self) -> bool:
        """Whether a single log that may still grow has an unfinished last line."""
        return not self._ended and any(log.alone and log.open for log in self._logs)

    def _progress(self, place: LogPlace, ends: Sequence[int]) -> tuple[int, int]:
        done = (min(log.offset_of(place), end) for log, end in zip(self._logs, ends, strict=True))
        return sum(done), sum(ends)

    def _complete_until(self) -> LogPlace:
        if self._logs and self._logs[0].alone:
            return self._logs[0].place(self._logs[0].reader.size)
        return LogPlace(self._now_ms + 1 if self._ended else max(0, self._now_ms - _SETTLED_MS), 0, 0)


def _length(lines: Sequence[MergedLine]) -> int:
    return sum(len(one.line.text) for one in lines)


def _placed(log: _RankLog, lines: list[LogLine]) -> Iterator[MergedLine]:
    for line in lines:
        yield MergedLine(log.place(line.offset), log.worker, line)


def chosen_ranks(text: str) -> set[int] | None:
    """Parse a selection of ranks: ``0-3,7``. None for all, or if it is invalid."""
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not part or not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 16:
            continue
        found.update(range(min(int(first), _MOST_RANKS), min(int(last or first), _MOST_RANKS) + 1))
    return found or None
