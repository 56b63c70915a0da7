"""Follows growing logs by the rules of ``tail -F``: of all nodes at once, also those that appear later."""

from __future__ import annotations

import heapq
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from platform_launch.log_view.entry import EntryReader, LogEntry
from platform_launch.log_view.launch import NodeLog, missing_nodes
from platform_launch.log_view.merge import Shown
from platform_launch.log_view.selection import Selection

_PAUSE_S = 0.3
# How often to look for new logs, and whether all have ended.
_LOOK_AROUND_S = 2.0
_MOST_BYTES = 1 << 20
_LONGEST_LINE = 1 << 16


class GrowingLog:
    """A log that is being written. A file that was replaced or truncated is read from its start."""

    def __init__(self, log: NodeLog) -> None:
        self.log = log
        self._path: Path = log.path
        self._file = -1
        self._inode = 0
        self._held = b""
        self._reader = EntryReader(log.events(), log.began)

    def backlog(self) -> Iterator[LogEntry]:
        """Yield the existing lines."""
        while entries := self.new_entries():
            yield from entries

    def new_entries(self) -> list[LogEntry]:
        """Return the lines that were finished since the last call."""
        self._reopen_if_replaced()
        if self._file < 0:
            return []
        try:
            data = os.read(self._file, _MOST_BYTES)
        except OSError:  # such as a stale handle of a network file system: opened again at the next call
            self.close()
            return []
        block, end, rest = (self._held + data).rpartition(b"\n")
        if not end and len(rest) > _LONGEST_LINE:
            block, end, rest = rest, b"\n", b""
        self._held = rest
        return list(self._reader.read_block(block)) if end else []

    def rest(self) -> list[LogEntry]:
        """Return the unfinished last line, if there is one."""
        held, self._held = self._held, b""
        return [self._reader.read(held)] if held else []

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _reopen_if_replaced(self) -> None:
        try:
            now = self._path.stat()
        except OSError:  # being rotated: the open file is read to its end
            return
        if self._file >= 0 and now.st_ino == self._inode:
            if now.st_size < os.lseek(self._file, 0, os.SEEK_CUR):
                os.lseek(self._file, 0, os.SEEK_SET)
                self._held = b""
            return
        if self._file >= 0 and os.fstat(self._file).st_size > os.lseek(self._file, 0, os.SEEK_CUR):
            return  # the old file first
        self.close()
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        self._inode, self._held = os.fstat(self._file).st_ino, b""


def followed(
    find: Callable[[], Sequence[NodeLog]], selection: Selection, tail: int | None = None
) -> Iterator[Shown]:
    """Yield the selected lines that exist, only the last ``tail`` of them, and then new ones.

    ``find`` returns the current logs. Lines that arrived since the last call are ordered by time. Ends when
    the launchers of all logs have reported the end, and no node's log is missing.
    """
    growing: dict[Path, GrowingLog] = {log.path: GrowingLog(log) for log in find()}
    try:
        by_line = tail is not None
        backlog = (_wanted(one.log, one.backlog(), selection, by_line=by_line) for one in growing.values())
        there = heapq.merge(*backlog, key=lambda shown: shown.entry.time_s)
        yield from there if tail is None else deque(there, maxlen=tail)
        while True:
            logs = find()
            for log in logs:
                growing.setdefault(log.path, GrowingLog(log))
            # Before the logs are read, so that everything written until then is read below.
            ended = bool(logs) and all(log.has_ended for log in logs) and not missing_nodes(logs)
            until = time.monotonic() + _LOOK_AROUND_S
            while (new := _sorted(growing.values(), GrowingLog.new_entries)) or time.monotonic() < until:
                yield from _wanted_of(new, selection)
                if not new and ended:
                    break
                if not new:
                    time.sleep(_PAUSE_S)
            if ended:
                last = _sorted(growing.values(), GrowingLog.rest)
                yield from _wanted_of(last, selection)
                return
    finally:
        for one in growing.values():
            one.close()


def _wanted(
    log: NodeLog, entries: Iterable[LogEntry], selection: Selection, *, by_line: bool = False
) -> Iterator[Shown]:
    return (Shown(log, entry) for entry in selection.of(entries, by_line=by_line))


def _wanted_of(found: Iterable[Shown], selection: Selection) -> Iterator[Shown]:
    for log, entry in found:
        yield from _wanted(log, [entry], selection)


def _sorted(growing: Iterable[GrowingLog], read: Callable[[GrowingLog], list[LogEntry]]) -> list[Shown]:
    found = [Shown(one.log, entry) for one in growing for entry in read(one)]
    return sorted(found, key=lambda shown: shown.entry.time_s)
