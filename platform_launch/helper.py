"""Helper processes: parts of this package that run beside the command a user started.

All start in one way, ``python …/platform_launch/__main__.py _helper NAME ARGUMENT…``: by path, so that
neither the working directory nor PYTHONPATH decides which package is found. No installation is needed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Lock

from platform_launch import streams
from platform_launch.files import write_all

ENTRY = "_helper"
PACKAGE = Path(__file__).resolve().parent

# Name → the module whose ``main(arguments)`` it is; each imports only what it needs.
HELPERS = {
    "dist-launch-broker": "platform_launch.dist_launch.broker",
    "dist-launch-end": "platform_launch.dist_launch.job_end",
    "dist-launch-rendezvous": "platform_launch.dist_launch.waiting_node",
    "dist-launch-node": "platform_launch.dist_launch.agent",
    "doctor-part": "platform_launch.doctor.cluster.part",
    "procguard-supervisor": "platform_launch.procguard.agent.supervisor",
    "side-by-side": "platform_launch.supervise.side_by_side",
}


def command(
    name: str, *arguments: str, python: str = sys.executable, package: Path | str = PACKAGE
) -> tuple[str, ...]:
    """Return the command line of a helper; ``python`` and ``package`` (its folder) may be another node's."""
    if name not in HELPERS:
        raise ValueError(f"no helper is called {name!r}")
    return (python, f"{package}/__main__.py", ENTRY, name, *arguments)


def main(arguments: Sequence[str]) -> int:
    """Be the helper that is named first, and return its exit code."""
    streams.ensure(of_helper=True)
    run: Callable[[Sequence[str]], int] = import_module(HELPERS[arguments[0]]).main
    return run(arguments[1:])


def answer_line(output: str) -> str:
    """Return the first line of a process's output that is a JSON object or array, '' where none is.

    An image may let every Python print something when it starts (sitecustomize, .pth files).
    """
    for line in output.splitlines():
        if line.startswith(("{", "[")):
            with suppress(ValueError, RecursionError):
                json.loads(line)
                return line
    return ""


class MessageOutlet:
    """A helper's way to its parent: one message a line, on what was its standard output.

    What stands before the first message is none: an image may let every Python print something at its start.

    Whatever a library prints goes to standard error from then on. A parent that is gone is no error: the end
    of standard input says so too.
    """

    def __init__(self) -> None:
        self._descriptor = os.dup(1)
        os.dup2(2, 1)
        self._lock = Lock()
        self.send(b"")  # ends a line that was begun

    def send(self, message: bytes) -> None:
        """Write one message whole, from any thread."""
        with self._lock, suppress(OSError):
            write_all(self._descriptor, message + b"\n")
