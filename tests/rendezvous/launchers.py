"""Launchers of nodes as separate processes, only with the rendezvous: they can be killed or stopped.

``python launchers.py`` reads a RunTask and then commands on standard input, and writes news on standard
output: a pickle per line.
"""

from __future__ import annotations

import base64
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from platform_launch.rendezvous.run.arriving import Command
from platform_launch.rendezvous.run.participation import Participation
from platform_launch.rendezvous.run.task import OwnProcesses, RunNews, RunTask


class LauncherProcess:
    """One launcher. ``heard(news)`` is called in a thread, with None when the process has ended."""

    def __init__(
        self,
        task: RunTask,
        heard: Callable[[RunNews | None], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
        )
        self.pid = self._process.pid
        self._heard = heard
        self._write(task)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def send(self, command: Command) -> None:
        self._write(command)

    def close(self) -> None:
        """Let it leave, and wait until it has exited."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    def _write(self, value: object) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(packed(value))
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            news: RunNews | None = unpacked(line)
            if news is not None:
                self._heard(news)
        self._heard(None)


def packed(value: object) -> bytes:
    return base64.b64encode(pickle.dumps(value)) + b"\n"


def unpacked(line: bytes) -> Any:
    return pickle.loads(base64.b64decode(line))


def main() -> None:
    """Be the launcher of one node, until standard input ends."""
    lock = threading.Lock()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def receive(news: RunNews | None) -> None:
        with lock, suppress(OSError):
            out.write(packed(news))
            out.flush()

    with os.fdopen(0, "rb", closefd=False) as commands:
        part = Participation(unpacked(commands.readline()), OwnProcesses(), receive)
        part.start()
        for line in commands:
            part.send(unpacked(line))
    part.close()
    os._exit(0)


if __name__ == "__main__":
    main()
