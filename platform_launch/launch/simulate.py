"""Several nodes of a job on one machine: each a supervised command, their lines side by side."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from textwrap import wrap
from threading import Timer

from platform_launch.console import in_a_log, on_a_terminal
from platform_launch.console.outlet import Outlet
from platform_launch.events import CATALOGUE, Event, event, marked
from platform_launch.supervise import DEFAULT_GRACE_S, Command, Watch
from platform_launch.supervise.channel import Channel, open_pipe
from platform_launch.supervise.processes import how_it_ended, shell_code
from platform_launch.supervise.text import LogText, RedrawnLines, WholeLines

_STDOUT = 1
# A node's own supervisor kills what is left of its training, and says so, before it is killed itself.
_NODE_END_S = 15.0
_NARROWEST = 40
_OWN = re.compile(rb"\[node \d+\] \d\d:\d\d:\d\d \[(INFO|SUCCESS|WARN|ERROR)\] ")
_LABEL = re.compile(r"\[node \d+\] ")
# Nodes that met end by themselves when one has failed, and say why: a signal would interrupt them.
_SETTLED_AFTER_S = 5.0
_LEVELS = {b"INFO": 36, b"SUCCESS": 32, b"WARN": 33, b"ERROR": 31}
_COLOURS = (36, 33, 35, 32, 34, 31)


def simulate(
    commands: Sequence[Command], labels: Sequence[str], *, grace_s: float = DEFAULT_GRACE_S, spares: int = 0
) -> int:
    """Run the nodes of a job together; return 0, or the exit code of the node that failed first.

    That failure ends all others soon, as a signal to this process does at once, unless ``spares`` of the
    nodes can be missed. ``labels`` name the nodes (``node 0``): on a terminal a node's own ``[node 0]`` is
    coloured. ``grace_s`` is the nodes' own grace time. Main thread only; see
    :class:`platform_launch.supervise.Watch`.
    """
    return _Simulation(labels, grace_s, spares).run(commands)


class _Simulation:
    def __init__(self, labels: Sequence[str], grace_s: float, spares: int) -> None:
        self._labels = labels
        self._spares = spares
        self._outlet = Outlet(_STDOUT, lambda _error: None)
        self._label_of: dict[int, str] = {}
        self._failures: list[int] = []
        self._timer: Timer | None = None
        self._watch = Watch(grace_s=grace_s + _NODE_END_S, tell=self._tell, ended=self._on_end)

    def run(self, commands: Sequence[Command]) -> int:
        with ExitStack() as stack:
            stack.callback(self._outlet.close)
            stack.enter_context(self._watch)
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, nothing)
            live = LiveLine(self._outlet) if os.isatty(_STDOUT) else None
            for index, (command, label) in enumerate(zip(commands, self._labels, strict=True)):
                colour = _COLOURS[index % len(_COLOURS)] if os.isatty(_STDOUT) else None
                reading, writing = open_pipe()
                self._watch.follow(Channel(reading, NodeLines(self._outlet, label, colour, live)))
                try:
                    pid = self._watch.start(command, {0: nothing, 1: writing, 2: writing})
                finally:
                    os.close(writing)
                self._label_of[pid] = label
            self._watch.wait()
            if self._timer is not None:
                self._timer.cancel()
        return self._failures[0] if len(self._failures) > self._spares else 0

    def _on_end(self, pid: int, code: int) -> None:
        if code == 0:
            return
        self._failures.append(shell_code(code))
        text = f"{self._label_of[pid]} ended with {how_it_ended(code)}"
        if len(self._failures) <= self._spares:
            self._tell(event("simulated-node-lost", what=text))
        elif self._watch.stopped_by is None and self._timer is None:
            self._timer = Timer(_SETTLED_AFTER_S, self._watch.stop, [text])
            self._timer.daemon = True
            self._timer.start()

    def _tell(self, event: Event) -> None:
        text = on_a_terminal(event) if os.isatty(_STDOUT) else in_a_log(event)
        self._outlet.write(f"{text}\n".encode(errors="backslashreplace"))


def _without_mark(text: str) -> str:
    """Leave out an event's mark, which is for logs and pipes; a finding's id stays: a page explains it."""
    found = marked(_LABEL.sub("", text, count=1))
    return text[: text.rindex(f" [{found[1].id}")] if found and found[1].id in CATALOGUE else text


class LiveLine:
    """The last line of a terminal, in which the progress bar of one node moves; whole lines go above it.

    The bar is that of the node which drew one first, until it is done: two would take turns too fast to read.
    """

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._shown = b""
        self._owner: object = None

    @property
    def columns(self) -> int:
        """How many columns a line may take."""
        with suppress(OSError):
            return max(_NARROWEST, os.get_terminal_size(_STDOUT).columns - 1)
        return 80

    def above(self, lines: bytes) -> None:
        """Write whole lines above the bar."""
        if lines:
            self._outlet.write((b"\r\x1b[K" if self._shown else b"") + lines + self._shown)

    def show(self, bar: bytes, owner: object) -> None:
        """Draw a node's bar in place of its last state; an empty one ends it."""
        if self._owner not in (None, owner) or (bar and self._outlet.blocked):
            return
        self._owner = owner if bar else None
        if bar or self._shown:
            self._outlet.write(b"\r\x1b[K" + bar)
        self._shown = bar


class NodeLines:
    """Writes a node's output by whole lines; of progress bars one state every few seconds, or ``live``."""

    def __init__(self, outlet: Outlet, label: str, colour: int | None, live: LiveLine | None = None) -> None:
        self.outlet = outlet
        self._live = live
        self._bars = RedrawnLines()
        self._label = f"[{label}]".encode()
        self._painted = self._label if colour is None else b"\x1b[%dm%b\x1b[0m" % (colour, self._label)
        self._text = LogText()
        self._lines = WholeLines()

    def feed(self, data: bytes) -> None:
        """Write the lines that are complete."""
        if self._live is None:
            self._write(self._lines.feed(self._text.feed(data)))
            return
        lines, bar = self._bars.feed(data)
        if bar == b"":
            self._live.show(b"", self)
        self._live.above(self._laid_out(lines, self._live.columns))
        if bar:
            cut = bar.decode(errors="replace")[: self._live.columns].encode()
            self._live.show(cut.replace(self._label, self._painted), self)

    def finish(self) -> None:
        """Write the unfinished last line."""
        if self._live is None:
            self._write(self._lines.feed(self._text.finish()) + self._lines.finish())
            return
        self._live.show(b"", self)
        self._live.above(self._laid_out(self._bars.finish(), self._live.columns))

    def _write(self, lines: bytes) -> None:
        self.outlet.write(lines.replace(self._label, self._painted))

    def _laid_out(self, lines: bytes, columns: int) -> bytes:
        """Break the launcher's lines between words, and colour its tags; a training's stay as they are."""
        return b"".join(self._one(line, columns) for line in lines.splitlines(keepends=True))

    def _one(self, line: bytes, columns: int) -> bytes:
        own = _OWN.match(line)
        if own is not None:
            text, margin = _without_mark(line.decode(errors="replace").rstrip("\n")), " " * own.end()
            wrapped = wrap(
                text, columns, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
            )
            line = "\n".join(wrapped).encode() + b"\n"
            tag, colour = own[1], _LEVELS[own[1]]
            line = line.replace(b"[%b]" % tag, b"\x1b[%dm[%b]\x1b[0m" % (colour, tag), 1)
        return line.replace(self._label, self._painted)
