"""Merges the output of many nodes: whole lines, each with its node, identical ones folded on request."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from platform_launch.console.languages import translate
from platform_launch.console.log import LogFile
from platform_launch.console.outlet import Outlet
from platform_launch.dist_launch.programs import NodeProgram
from platform_launch.events import Event
from platform_launch.rendezvous.ranks import compact
from platform_launch.supervise.text import LinePrefix, LogText, WholeLines
from platform_launch.topology import node_prefix

# Lines are folded only if the nodes print them within this time.
_FOLD_S = 0.4
# As the launcher and most loggers begin a line; clocks and starts of nodes differ.
_TIME = re.compile(rb"^\[?(?:\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d(?:[.,]\d+)?\]? ")


class NodesOutput:
    """Writes to two descriptors without ever blocking in a write, and to a log for each node.

    ``names`` are the nodes' names, if lines should show these instead of ranks. ``language`` is that of our
    own lines, by default this process's. The programs that write the
    output (``comes_from``) pause while the reader is slow.
    """

    def __init__(
        self,
        descriptors: tuple[int, int],
        ranks: Iterable[int],
        *,
        fold: bool,
        logs: Mapping[int, LogFile],
        names: Mapping[int, str] | None = None,
        language: str = "",
    ) -> None:
        self._language = language
        out = Outlet(descriptors[0], lambda _error: None)
        same = os.path.sameopenfile(*descriptors)
        self._outlets = (out, out if same else Outlet(descriptors[1], lambda _error: None))
        self._is_terminal = os.isatty(descriptors[1])
        self._programs: dict[int, NodeProgram] = {}
        self._streams = {
            (rank, is_stderr): _NodeStream(rank, is_stderr, (names or {}).get(rank, f"rank-{rank}"))
            for rank in ranks
            for is_stderr in (False, True)
        }
        self._logs = logs
        self._fold = _LineFolder({rank for rank, _ in self._streams}, self._show) if fold else None
        self._slow = False

    def comes_from(self, rank: int, program: NodeProgram) -> None:
        """Read a node's output from this program until ``finish``."""
        self._programs[rank] = program
        if self._slow:
            program.throttle(True)

    def feed(self, rank: int, data: bytes, is_stderr: bool) -> None:
        """Handle a chunk of a node's output."""
        stream = self._streams[rank, is_stderr]
        self._write(stream, stream.lines.feed(stream.text.feed(data)))

    def finish(self, rank: int) -> None:
        """Handle the end of a node's output."""
        self._programs.pop(rank, None)
        for is_stderr in (False, True):
            stream = self._streams[rank, is_stderr]
            self._write(stream, stream.lines.feed(stream.text.finish()) + stream.lines.finish())

    def print(self, level: str, text: Event | str) -> None:
        """Write a line of our own, with the time if the output is a log or a pipe."""
        lead = "" if self._is_terminal else time.strftime("%H:%M:%S ")
        flat = " ".join(translate(text, self._language).splitlines())
        self._show(f"{lead}[{level}] {flat}\n".encode(errors="replace"), True)

    async def close(self) -> None:
        """Write what is buffered; wait for a reader that is slow."""
        if self._fold is not None:
            self._fold.flush()
        while self._slow:
            await asyncio.sleep(0.02)
        for log in self._logs.values():
            log.close()
        for outlet in set(self._outlets):
            outlet.close()

    def _write(self, stream: _NodeStream, lines: bytes) -> None:
        if not lines:
            return
        if stream.rank in self._logs:
            self._logs[stream.rank].append(lines, stream)
        lines = stream.bare(lines)
        if self._fold is not None:
            self._fold.add(stream.rank, lines, stream.is_stderr)
        else:
            self._show(stream.prefix.feed(lines), stream.is_stderr)

    def _show(self, data: bytes, is_stderr: bool) -> None:
        outlet = self._outlets[is_stderr]
        outlet.write(data)
        if outlet.blocked and not self._slow:
            self._throttle(True)
            self._when_ready()

    def _when_ready(self) -> None:
        """Flush until nothing is buffered, then read on."""
        loop = asyncio.get_running_loop()
        for outlet in set(self._outlets):
            if outlet.blocked:
                loop.add_writer(outlet.fd, self._flush, outlet, outlet.fd)

    def _flush(self, outlet: Outlet, fd: int) -> None:
        outlet.flush()
        if not outlet.blocked:
            asyncio.get_running_loop().remove_writer(fd)
        if self._slow and not any(outlet.blocked for outlet in self._outlets):
            self._throttle(False)

    def _throttle(self, slow: bool) -> None:
        self._slow = slow
        for program in self._programs.values():
            program.throttle(slow)

    def abandon(self) -> None:
        """Drop what cannot be written: the reader is gone or no longer matters."""
        loop = asyncio.get_running_loop()
        for outlet in set(self._outlets):
            if outlet.fd >= 0:
                with suppress(OSError, ValueError):
                    loop.remove_writer(outlet.fd)
            outlet.close()
        if self._slow:
            self._throttle(False)


class _NodeStream:
    """One of a node's two streams."""

    def __init__(self, rank: int, is_stderr: bool, name: str) -> None:
        self.rank = rank
        self.is_stderr = is_stderr
        self.text = LogText()
        self.lines = WholeLines()
        self.prefix = LinePrefix(f"[{name}] ")
        self._launchers = node_prefix(rank).encode()

    def bare(self, lines: bytes) -> bytes:
        """Return whole lines without the prefix of a launcher on this node; our prefix says the same."""
        # A regular expression is ten times slower on large outputs.
        return lines.removeprefix(self._launchers).replace(b"\n" + self._launchers, b"\n")


class _LineFolder:
    """Holds each line for a moment and writes it once for all nodes that print it: ``[rank-0-3] epoch 1``.

    A time at the beginning of a line is ignored; the first node's is shown.
    """

    def __init__(self, ranks: set[int], show: Callable[[bytes, bool], None]) -> None:
        self._ranks = ranks
        self._show = show
        # Key of a line → the line as it first arrived, and the nodes that have printed it.
        self._held: dict[tuple[bytes, bool], tuple[bytes, list[int]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, rank: int, lines: bytes, is_stderr: bool) -> None:
        for line in lines.splitlines(keepends=True):
            key = (_TIME.sub(b"", line), is_stderr)
            if key in self._held and rank in self._held[key][1]:
                self.flush()  # the same line again: keep the order
            self._held.setdefault(key, (line, []))[1].append(rank)
        if all(len(ranks) == len(self._ranks) for _, ranks in self._held.values()):
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FOLD_S, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, {}
        for (_, is_stderr), (line, ranks) in held.items():
            self._show(f"[rank-{compact(ranks).replace(' ', '')}] ".encode() + line, is_stderr)
