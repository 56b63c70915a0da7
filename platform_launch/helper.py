"""Helper processes: parts of this package that run beside the user's command.

All start in the same way, ``python …/platform_launch/__main__.py _helper NAME ARGUMENT…``: by path, so that
neither the working directory nor PYTHONPATH decides which package is used. No installation is needed.
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
    """Run the helper that the first argument names, and return its exit code."""
    streams.ensure(of_helper=True)
    run: Callable[[Sequence[str]], int] = import_module(HELPERS[arguments[0]]).main
    return run(arguments[1:])


def answer_line(output: str) -> str:
    """Return the first line of a process's output that is a JSON object or array, or ''.

    An image may make every Python print something at startup (sitecustomize, .pth files).
    """
    for line in output.splitlines():
        if line.startswith(("{", "[")):
            with suppress(ValueError, RecursionError):
                json.loads(line)
                return line
    return ""


class MessageOutlet:
    """A helper's messages to its parent: one per line, on the original standard output.

    Anything before the first message is ignored: an image may make every Python print something at startup.
    From then on, whatever a library prints goes to standard error. A parent that is gone is no error, because
    the end of standard input shows it too.
    """

    def __init__(self) -> None:
        self._descriptor = os.dup(1)
        os.dup2(2, 1)
        self._lock = Lock()
        self.send(b"")  # ends an unfinished line

    def send(self, message: bytes) -> None:
        """Write one message as a whole, from any thread."""
        with self._lock, suppress(OSError):
            write_all(self._descriptor, message + b"\n")
