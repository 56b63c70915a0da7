"""Several nodes of a job on one machine: each a supervised command, their lines side by side."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack

from platform_launch.supervise import DEFAULT_GRACE_S, Command, Watch
from platform_launch.supervise.channel import Channel, open_pipe
from platform_launch.supervise.outlet import Outlet
from platform_launch.supervise.text import LogText, WholeLines

_STDOUT = 1
# A node's own supervisor kills what is left of its training, and says so, before it is killed itself.
_NODE_END_S = 15.0
_COLOURS = (36, 33, 35, 32, 34, 31)


def simulate(commands: Sequence[Command], labels: Sequence[str], *, grace_s: float = DEFAULT_GRACE_S) -> int:
    """Run the nodes of a job together; return 0, or the exit code of the node that failed first.

    That failure ends all others, as a signal to this process does. ``labels`` name the nodes (``node 0``): on
    a terminal a node's own ``[node 0]`` is coloured. ``grace_s`` is the nodes' own grace time. Main thread
    only; see :class:`platform_launch.supervise.Watch`.
    """
    return _Simulation(labels, grace_s).run(commands)


class _Simulation:
    def __init__(self, labels: Sequence[str], grace_s: float) -> None:
        self._labels = labels
        self._outlet = Outlet(_STDOUT, lambda _error: None)
        self._label_of: dict[int, str] = {}
        self._failure = 0
        self._watch = Watch(grace_s=grace_s + _NODE_END_S, say=self._say, ended=self._on_end)

    def run(self, commands: Sequence[Command]) -> int:
        with ExitStack() as stack:
            stack.callback(self._outlet.close)
            stack.enter_context(self._watch)
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, nothing)
            for index, (command, label) in enumerate(zip(commands, self._labels, strict=True)):
                colour = _COLOURS[index % len(_COLOURS)] if os.isatty(_STDOUT) else None
                reading, writing = open_pipe()
                self._watch.follow(Channel(reading, NodeLines(self._outlet, label, colour)))
                try:
                    pid = self._watch.start(command, {0: nothing, 1: writing, 2: writing})
                finally:
                    os.close(writing)
                self._label_of[pid] = label
            self._watch.wait()
        return self._failure

    def _on_end(self, pid: int, code: int) -> None:
        if code == 0 or self._failure:
            return
        self._failure = code if code > 0 else 128 - code
        if self._watch.stopped_by is None:
            how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
            self._watch.stop(f"{self._label_of[pid]} ended with {how}")

    def _say(self, level: str, text: str) -> None:
        self._outlet.write(f"[{level}] {text}\n".encode(errors="replace"))


class NodeLines:
    """Writes a node's output by whole lines; of progress bars one state every few seconds."""

    def __init__(self, outlet: Outlet, label: str, colour: int | None) -> None:
        self.outlet = outlet
        self._label = f"[{label}]".encode()
        self._painted = self._label if colour is None else b"\x1b[%dm%b\x1b[0m" % (colour, self._label)
        self._text = LogText()
        self._lines = WholeLines()

    def feed(self, data: bytes) -> None:
        """Write the lines that are complete."""
        self._write(self._lines.feed(self._text.feed(data)))

    def finish(self) -> None:
        """Write the unfinished last line."""
        self._write(self._lines.feed(self._text.finish()) + self._lines.finish())

    def _write(self, lines: bytes) -> None:
        self.outlet.write(lines.replace(self._label, self._painted))
