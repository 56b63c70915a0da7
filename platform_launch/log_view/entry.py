"""A log's lines with their time and level, or those of the lines before them."""

from __future__ import annotations

import re
import time
from calendar import timegm
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import NamedTuple

from platform_launch.events import LEVELS, Event, marked
from platform_launch.log_view.blocks import last_dated, line_starts
from platform_launch.text import one_line
from platform_launch.why.lines.line import plain

_DAY_S = 86400.0
_HALF_A_DAY_S = _DAY_S / 2
_LONGEST_SILENCE_S = 30 * _DAY_S  # a time further on is part of the message
_SAME_MOMENT_S = 2.0  # lines have whole seconds, and follow their event
_QUARTER_S = 900.0  # no time zone is finer
_MOST_SEARCHED = 160

# Prefixes of a line: this launcher's node, torchrun's and torch's ranks.
_PREFIX = re.compile(r"(?:\[node \d{1,6}\] ?)?(?:\[(?:rank|default|trainer)\d{1,7}\]: ?)?")
# A time of day alone counts only where this launcher or a logger puts it; scripts print durations.
_TIME = re.compile(
    r"""
    (?: [\[(]?(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T_ ]
      | \[?[EWIFD](?P<gmonth>\d\d)(?P<gday>\d\d)[ ]
      | (?=\[\d\d:\d\d:\d\d[\] ]|\d\d:\d\d:\d\d[ ](?:\[(?:INFO|SUCCESS|WARN|ERROR)\]|==)[ ])\[?
    )
    (?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d):(?P<second>[0-5]\d)(?:[.,](?P<part>\d{1,9}))?
    (?P<zone>Z|[+-]\d\d:?\d\d)?
    """,
    re.VERBOSE,
)
_OWN = re.compile(r"(?:\d\d:\d\d:\d\d )?\[(INFO|SUCCESS|WARN|ERROR)\] ")
_REFUSAL = re.compile(r"(?:\d\d:\d\d:\d\d )?(?:error|hint): ")
_STAGE = re.compile(r"(?:\d\d:\d\d:\d\d )?== \d/\d .*=$")
_GLOG = re.compile(r"\[?([EWIFD])\d{4} \d\d:\d\d:\d\d")
_WORD = re.compile(
    r"\b(?:(?P<error>ERROR|CRITICAL|FATAL)|(?P<warn>WARN(?:ING)?\b|\w*Warning:)|(?P<info>INFO|DEBUG|NOTICE))"
)
_RAISED = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Failure)\b(?::|$)")
# Every such line contains these: searching for them costs a tenth.
_RAISED_WORDS = ("Error", "Exception", "Interrupt", "Exit", "Failure")
_LEVEL_WORDS = ("ERROR", "CRITICAL", "FATAL", "WARN", "Warning:")
_MAY_BEGIN_A_TIME = frozenset("[(EWIFD0123456789")
_GLOG_LEVELS = {"E": "ERROR", "F": "ERROR", "W": "WARN"}


class LogEntry(NamedTuple):
    """One line, or a run of lines without time and level.

    ``time_s`` is Unix time, ``number`` that of the first line, from 1; ``text`` is printable and lacks the
    last line end. ``is_frame``: part of a traceback, before the line that names the exception.
    """

    time_s: float
    number: int
    level: str
    text: str
    is_stage: bool = False
    is_frame: bool = False

    def lines(self, pattern: re.Pattern[str] | None = None) -> Iterator[LogEntry]:
        """Yield each line by itself; with a pattern, only those that match."""
        for number, text in enumerate(self.text.split("\n"), self.number):
            if pattern is None or pattern.search(text) is not None:
                yield self._replace(number=number, text=text)


class EntryReader:
    """Parses the lines of one log, in order.

    A time of day becomes a Unix time through the launch's ``events`` (UTC), or else through ``began``, when
    the log began by its node's clock. Lines without a time have that of the line before.
    """

    def __init__(self, events: Iterable[Event], began: datetime | None) -> None:
        self._expected: dict[str, deque[float]] = {}
        first: float | None = None
        for event in events:
            moment = _moment(event.time)
            if moment is not None:
                self._expected.setdefault(event.id, deque()).append(moment)
                first = moment if first is None else first
        local = _as_if_utc(began) if began is not None else None
        if first is not None and local is not None:
            self._zone_s = round((local - first) / _QUARTER_S) * _QUARTER_S
        else:
            self._zone_s = float(time.localtime().tm_gmtoff)
        self.time_s = first if first is not None else (0.0 if local is None else local - self._zone_s)
        self.number = 0
        self._level = "INFO"
        self._in_traceback = False

    def read_block(
        self, block: bytes, *, runs_wanted: bool = True, times_wanted: bool = True
    ) -> Iterator[LogEntry]:
        """Parse many lines, without the last line end.

        Without runs, lines without a level are left out, but the last of their times is used. Without times,
        lines that only have a date belong to a run.
        """
        at, after, dates = 0, len(block) + 1, runs_wanted and times_wanted
        for start in (*line_starts(block, dates=dates), after):
            if at < start:
                yield from self._run(block[at : start - 1], wanted=runs_wanted, dated=not dates)
            if start < after:
                end = block.find(b"\n", start)
                end = len(block) if end < 0 else end
                yield self.read(block[start:end])
                at = end + 1

    def _run(self, lines: bytes, *, wanted: bool, dated: bool) -> Iterator[LogEntry]:
        if self._in_traceback:  # the line with the exception
            first, more, lines = lines.partition(b"\n")
            yield self.read(first)
            if not more:
                return
        count = lines.count(b"\n") + 1
        if wanted:
            yield LogEntry(self.time_s, self.number + 1, "INFO", lines.decode("ascii"))
        if dated and (last := last_dated(lines)) is not None:
            self.read(last)
            self.number -= 1
        self.number += count
        self._level = "INFO"

    def read(self, data: bytes) -> LogEntry:
        """Parse the next line, without its end. Never fails."""
        self.number += 1
        if b"\r" in data:
            data = data.rstrip(b"\r")
            data = data[data.rfind(b"\r") + 1 :]
        whole = plain(data)
        if not whole.isprintable():
            whole = one_line(whole)
        text = whole
        if whole[:1] == "[" and (prefix := _PREFIX.match(whole)) is not None:
            text = whole[prefix.end() :]
        if text[:1] not in _MAY_BEGIN_A_TIME:  # nearly every line; what follows costs more
            self._level = self._level_of(text)
            return LogEntry(self.time_s, self.number, self._level, whole, is_frame=self._in_traceback)
        found = _TIME.match(text)
        if found is not None:
            moment = self._time(found)
            if self.time_s <= moment <= self.time_s + _LONGEST_SILENCE_S or not self.time_s:
                self.time_s = moment
        own = _OWN.match(text)
        if own is None:
            is_stage = found is not None and _STAGE.match(text) is not None
            self._level = "INFO" if is_stage else self._level_of(text)
            return LogEntry(self.time_s, self.number, self._level, whole, is_stage)
        self._level, self._in_traceback = own[1], False
        parted = marked(text)
        expected = None if parted is None else self._expected.get(parted[1].id)
        if expected:
            # Lines of one event share its time; another event of the kind comes later.
            if len(expected) > 1 and expected[1] <= self.time_s + 1:
                expected.popleft()
            if abs(expected[0] - self.time_s) < _SAME_MOMENT_S:  # else a later one, not read yet
                self.time_s = expected[0]
        return LogEntry(self.time_s, self.number, self._level, whole)

    def _level_of(self, text: str) -> str:
        if text[:1] in (" ", "\t"):
            return self._level
        if glog := _GLOG.match(text):
            self._in_traceback = False
            return _GLOG_LEVELS.get(glog[1], "INFO")
        begins = "Traceback (most recent call last)" in text
        if self._in_traceback and not begins:  # the line with the exception
            self._in_traceback = False
            return "ERROR"
        self._in_traceback = begins
        if begins or (any(word in text for word in _RAISED_WORDS) and _RAISED.match(text)):
            return "ERROR"
        if not any(word in text for word in _LEVEL_WORDS):
            return "ERROR" if _REFUSAL.match(text) else "INFO"
        word = _WORD.search(text, 0, _MOST_SEARCHED)
        return "INFO" if word is None or word["info"] else "ERROR" if word["error"] else "WARN"

    def _time(self, found: re.Match[str]) -> float:
        """Return the Unix time of a line's time; one without a date is within a day of the line before."""
        local = self.time_s + self._zone_s
        clock = int(found["hour"]) * 3600 + int(found["minute"]) * 60 + int(found["second"])
        seconds = clock + float(f"0.{found['part'] or 0}")
        year, month, day = found["year"], found["month"], found["day"]
        if year is None and found["gmonth"] is not None:
            year, month, day = str(time.gmtime(local).tm_year), found["gmonth"], found["gday"]
        if year is not None:
            try:
                midnight = float(timegm((int(year), int(month), int(day), 0, 0, 0)))
            except ValueError:
                return self.time_s
            zone = found["zone"]
            zone_s = self._zone_s
            if zone is not None:
                zone_s = 0.0 if zone == "Z" else _offset_s(zone)
            return midnight + seconds - zone_s
        midnight = local - local % _DAY_S
        if midnight + seconds < local - _HALF_A_DAY_S:
            midnight += _DAY_S
        return midnight + seconds - self._zone_s


def rank_of_level(level: str) -> int:
    """Return the severity of a level: INFO and SUCCESS 0, WARN 1, ERROR 2."""
    return max(0, LEVELS.index(level) - 1)


def _moment(text: str) -> float | None:
    try:
        return (
            datetime.strptime(text.rstrip("Z")[:23], "%Y-%m-%dT%H:%M:%S.%f")
            .replace(tzinfo=timezone.utc)
            .timestamp()
        )
    except ValueError:
        return None


def _as_if_utc(moment: datetime) -> float:
    return moment.replace(tzinfo=timezone.utc).timestamp()


def _offset_s(zone: str) -> float:
    sign = -1 if zone[0] == "-" else 1
    return sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
