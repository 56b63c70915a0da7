"""What a supervisor that was killed has left behind: found by the variable its processes carry, and ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection

from platform_launch.hardware import running
from platform_launch.hardware.running import Process
from platform_launch.procguard.agent.records import MARKER

# They have had SIGTERM from the kernel when their supervisor died.
_OBEY_S = 3.0


class Leftovers:
    """The processes of one worker's runs that no supervisor looks after."""

    def __init__(self, instance: str, number: int) -> None:
        self._prefix = f"{instance}:{number}:"
        self._kill_at = float("inf")
        self._terminated: set[int] = set()
        self._found: list[Process] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """Those that the last scan found."""
        return tuple(process.pid for process in self._found)

    def scan(self, kept: Collection[int]) -> None:
        """Look for them among all processes; ``kept`` are the generations whose supervisor lives."""
        self._found = [process for process in running.running() if self._is_ours(process, kept)]

    def end(self) -> None:
        """Ask those that were found to end; kill them when they have not for some seconds."""
        now = time.monotonic()
        if not self._terminated:
            self._kill_at = now + _OBEY_S
        for process in self._found:
            if now >= self._kill_at:
                running.end(process, signal.SIGKILL)
            elif process.pid not in self._terminated:
                running.end(process, signal.SIGTERM)
                self._terminated.add(process.pid)
        if not self._found:
            self._terminated.clear()

    def _is_ours(self, process: Process, kept: Collection[int]) -> bool:
        carried = running.variable(process.pid, MARKER) or ""
        if not carried.startswith(self._prefix):
            return False
        generation = carried.removeprefix(self._prefix)
        return not (generation.isdigit() and int(generation) in kept)
