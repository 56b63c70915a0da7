"""The logs of all ranks of a run merged by time of arrival, a page at a time.

A page is correct wherever it begins: it ends where the first rank's log was not read further, and the next
one begins there.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from platform_launch.procguard.server.logs.filtering import LineFilter, LineScan, LogLine
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

    ``more``: what follows can be read at once. ``read`` of ``size`` bytes are before ``after``.
    """

    lines: list[MergedLine]
    before: LogPlace | None
    after: LogPlace | None
    more: bool
    read: int = 0
    size: int = 0


@dataclass(frozen=True)
class _RankLog:
    rank: int
    worker: str
    reader: Reader
    marks: ArrivalMarks
    whole: bool
    """Whether it has ended: then a last line without a newline is complete."""

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

    def lines(self, begin: int, end: int) -> list[LogLine]:
        return list(self.reader.lines(begin, end, whole=self.whole))


class MergedLog:
    """The logs of a run's ranks: ``workers`` are pairs of rank and worker."""

    def __init__(
        self, logs: Logs, workers: Sequence[tuple[int, str]], generation: int, *, ended: bool
    ) -> None:
        self._ended = ended
        found = []
        for rank, worker in workers:
            reader = Reader(logs.root, worker, generation)
            if reader.size:
                marks = ArrivalMarks.read(reader.folder)
                found.append(_RankLog(rank, worker, reader, marks, ended))
        self._logs = found
        newest_ms = max((log.marks.newest_ms for log in found), default=0)
        self._now_ms = max(newest_ms, logs.time.now_ms()) if ended else logs.time.now_ms(newest_ms)

    def of_line(self, rank: int, line: int) -> LogPlace | None:
        """Return the position of a line of a rank's log."""
        log = next((one for one in self._logs if one.rank == rank), None)
        offset = log.reader.offset_of_line(line) if log else None
        return None if log is None or offset is None else log.place(offset)

    def before(self, place: LogPlace | None, most: int) -> MergedPage:
        """Return the last lines before a position, or the last ones of all."""
        until = place or self._settled()
        floor: LogPlace | None = None
        lines: list[MergedLine] = []
        each = min(_MOST // 4, max(_LEAST, _READ_AHEAD // 16 // max(1, len(self._logs))))
        for log in self._logs:
            end = log.offset_of(until)
            begin = max(0, end - each)
            part = log.lines(begin, end)
            if begin and not part and end > begin:
                part = [LogLine(begin, log.reader.text(begin, end))]  # a piece of a very long line
            lines += _placed(log, part)
            if begin and part:
                first = log.place(part[0].offset)
                floor = first if floor is None else max(floor, first)
        kept = sorted(
            (one for one in lines if floor is None or one.place >= floor), key=lambda one: one.place
        )
        trimmed = kept[-most:]
        earlier = floor is not None or len(trimmed) < len(kept)
        return MergedPage(trimmed, trimmed[0].place if earlier and trimmed else None, until, more=False)

    def around(self, place: LogPlace, most: int) -> MergedPage:
        """Return the lines before a position and those from it on."""
        earlier, later = self.before(place, most // 2), self.after(place, most - most // 2, LineFilter())
        return MergedPage(earlier.lines + later.lines, earlier.before, later.after, later.more)

    def after(self, place: LogPlace | None, most: int, wanted: LineFilter, context: int = 0) -> MergedPage:
        """Return the first selected lines from a position on, or the first ones of all.

        The log that is furthest behind is read further, until there are enough lines or the time is up. What
        other logs have beyond that position is left for the next page.
        """
        begin_at, settled = place or LogPlace(0, 0, 0), self._settled()
        each = min(_MOST, max(_LEAST, _READ_AHEAD // max(1, len(self._logs))))
        scans = [LineScan(wanted, context) for _ in self._logs]
        ends = [log.offset_of(settled) for log in self._logs]
        begins = [log.offset_of(begin_at) for log in self._logs]
        behind = [
            (max(begin_at, log.place(begin)), index, begin)
            for index, (log, begin) in enumerate(zip(self._logs, begins, strict=True))
            if begin < ends[index]
        ]
        heapq.heapify(behind)
        lines: list[MergedLine] = []
        while behind:
            known_to, index, begin = behind[0]
            if lines and (wanted.time_is_up or sum(one.place < known_to for one in lines) > most):
                break
            if known_to > begin_at and wanted.time_is_up:
                break
            log, stop = self._logs[index], min(ends[index], begin + each)
            part: list[LogLine] = []
            for offset, block in log.reader.blocks(begin, stop, whole=log.whole):
                part += islice(scans[index].lines(offset, block), most + 1 - len(part))
                if len(part) > most:
                    stop = part.pop().offset
                    break
            lines += _placed(log, part)
            if stop < ends[index]:
                heapq.heapreplace(behind, (log.place(stop), index, stop))
            else:
                heapq.heappop(behind)
        ceiling = behind[0][0] if behind else settled
        kept = sorted((one for one in lines if begin_at <= one.place < ceiling), key=lambda one: one.place)
        more = bool(behind)
        if len(kept) > most:
            ceiling, more = kept[most].place, True
        after = max(begin_at, ceiling)
        return MergedPage(kept[:most], begin_at if place else None, after, more, *self._progress(after, ends))

    def _progress(self, place: LogPlace, ends: Sequence[int]) -> tuple[int, int]:
        done = (min(log.offset_of(place), end) for log, end in zip(self._logs, ends, strict=True))
        return sum(done), sum(ends)

    def _settled(self) -> LogPlace:
        return LogPlace(self._now_ms + 1 if self._ended else max(0, self._now_ms - _SETTLED_MS), 0, 0)


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
