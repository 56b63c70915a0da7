"""Processes left behind by a killed supervisor: found by the variable they carry, and ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection

from platform_launch.hardware import running
from platform_launch.hardware.running import Process
from platform_launch.procguard.agent.records import MARKER

# The kernel sent them SIGTERM when their supervisor died.
_OBEY_S = 3.0


class Leftovers:
    """The processes of one worker's runs without a supervisor."""

    def __init__(self, instance: str, number: int) -> None:
        self._prefix = f"{instance}:{number}:"
        self._kill_at = float("inf")
        self._terminated: set[int] = set()
        self._found: list[Process] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the last scan."""
        return tuple(process.pid for process in self._found)

    def scan(self, kept: Collection[int]) -> None:
        """Search all processes; ``kept`` are the generations whose supervisor is alive."""
        self._found = [process for process in running.running() if self._is_ours(process, kept)]

    def end(self) -> None:
        """Send SIGTERM to the processes found, and SIGKILL after some seconds."""
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
