"""Whole logs as one stream of entries, in the order of their times."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from platform_launch.log_view.entry import EntryReader, LogEntry
from platform_launch.log_view.launch import NodeLog
from platform_launch.log_view.selection import Selection
from platform_launch.why.opening import OpenedLog
from platform_launch.why.scan import Readable

_BLOCK_BYTES = 1 << 20
_LONGEST_LINE = 1 << 16
# Where only the last lines are wanted, so many before them are looked at for a time.
_LOOKBACK_LINES = 2000


class Shown(NamedTuple):
    """A line and the log that it is from."""

    log: NodeLog
    entry: LogEntry


def merged(
    logs: Sequence[tuple[NodeLog, Readable]], selection: Selection, tail: int | None = None
) -> Iterator[Shown]:
    """Yield the wanted lines of all logs by time, the last ``tail`` of them only.

    Lines of equal time stay in their log's order.
    """
    streams = [_entries(log, stream, selection, tail) for log, stream in logs]
    found = streams[0] if len(streams) == 1 else heapq.merge(*streams, key=lambda shown: shown.entry.time_s)
    yield from found if tail is None else deque(found, maxlen=tail)


def opened(logs: Iterable[NodeLog], files: ExitStack) -> list[tuple[NodeLog, Readable]]:
    """Open logs, packed ones too. Raises InputError for one that cannot be read."""
    return [(log, files.enter_context(OpenedLog(log.path))) for log in logs]


def split_lines(stream: Readable) -> Iterator[bytes]:
    """Yield a stream's lines without their ends, also an unfinished last one; endless ones come in pieces."""
    held = b""
    while block := stream.read(_BLOCK_BYTES):
        *lines, held = (held + block).split(b"\n")
        yield from lines
        if len(held) > _LONGEST_LINE:
            yield held
            held = b""
    if held:
        yield held


def _entries(log: NodeLog, stream: Readable, selection: Selection, tail: int | None) -> Iterator[Shown]:
    reader = EntryReader(log.events(), log.began)
    lines: Iterable[bytes] = split_lines(stream)
    unwanted = 0
    if tail is not None and selection.takes_all:
        last = deque(enumerate(lines), maxlen=tail + _LOOKBACK_LINES)
        reader.number = last[0][0] if last else 0
        unwanted = max(0, len(last) - tail)
        lines = [line for _, line in last]
    for number, line in enumerate(lines):
        entry = reader.read(line)
        if number >= unwanted and selection.takes(entry):
            yield Shown(log, entry)
