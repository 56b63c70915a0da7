"""Whole logs as one stream of entries, in the order of their times."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import chain
from typing import NamedTuple

from platform_launch.log_view.blocks import line_blocks
from platform_launch.log_view.entry import EntryReader, LogEntry
from platform_launch.log_view.launch import NodeLog
from platform_launch.log_view.selection import Selection
from platform_launch.why.lines.opening import OpenedLog
from platform_launch.why.lines.scan import Readable

# If only the last lines are selected, this many lines before them are searched for a time.
_LOOKBACK_LINES = 2000


class Shown(NamedTuple):
    """A line, or a run of lines, and its log."""

    log: NodeLog
    entry: LogEntry


def merged(
    logs: Sequence[tuple[NodeLog, Readable]], selection: Selection, tail: int | None = None
) -> Iterable[Shown]:
    """Return the selected lines of all logs by time, only the last ``tail`` of them.

    Lines of equal time stay in their log's order.
    """
    streams = [_entries(log, stream, selection, tail, by_time=len(logs) > 1) for log, stream in logs]
    found = streams[0] if len(streams) == 1 else heapq.merge(*streams, key=lambda shown: shown.entry.time_s)
    return found if tail is None else deque(found, maxlen=tail)


def opened(logs: Iterable[NodeLog], files: ExitStack) -> list[tuple[NodeLog, Readable]]:
    """Open logs, also compressed ones. Raises InputError for one that cannot be read."""
    return [(log, files.enter_context(closing(OpenedLog(log.path)))) for log in logs]


def _entries(
    log: NodeLog, stream: Readable, selection: Selection, tail: int | None, *, by_time: bool
) -> Iterable[Shown]:
    reader = EntryReader(log.events(), log.began)
    blocks = line_blocks(stream)
    if tail is not None and selection.selects_all:
        blocks = _last(blocks, tail + _LOOKBACK_LINES, reader)
    entries = (
        reader.read_block(block, runs_wanted=selection.selects_info, times_wanted=by_time) for block in blocks
    )
    found = selection.of(chain.from_iterable(entries), by_line=tail is not None)
    shown = (Shown(log, entry) for entry in found)
    return shown if tail is None else deque(shown, maxlen=tail)


def _last(blocks: Iterable[bytes], wanted: int, reader: EntryReader) -> Iterator[bytes]:
    """Yield the last blocks with at least that many lines; skip the others."""
    held: deque[tuple[int, bytes]] = deque()
    there = 0
    for block in blocks:
        held.append((block.count(b"\n") + 1, block))
        there += held[-1][0]
        while there - held[0][0] >= wanted:
            count, _ = held.popleft()
            there -= count
            reader.number += count
    count, first = held.popleft() if held else (0, b"")
    if count:
        passed = max(0, there - wanted)
        reader.number += passed
        yield first.split(b"\n", passed)[passed]
    yield from (block for _, block in held)
