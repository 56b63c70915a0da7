"""Reads the use of this node and its GPUs in separate threads: a driver may hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import psutil

from platform_launch.hardware import running
from platform_launch.hardware.use import GpuMeter, read_machine_use
from platform_launch.procguard.agent.records import MARKER
from platform_launch.procguard.api.wire import ForeignGpuProcess, GpuReport, MachineReport

T = TypeVar("T")

_EVERY_S = 2.0
# Older readings are dropped: the driver hangs.
_FRESH_S = 15.0
_MOST = 32
_MOST_PROCESSES = 64


class MachineMonitor:
    """Keeps the latest readings. Free space is that of the disk of ``directory``.

    This agent's own runs carry ``instance``.
    """

    def __init__(self, meter: GpuMeter, directory: Path, instance: str) -> None:
        self._meter = meter
        self._ours = f"{instance}:"
        self.gpu_processes: tuple[ForeignGpuProcess, ...] = ()
        self._directory = directory
        self.machine: MachineReport | None = None
        self._last: tuple[GpuReport, ...] = ()
        self._read_at = float("-inf")

    def start(self) -> None:
        """Start reading, for the life of the process."""
        threading.Thread(target=self._run, daemon=True).start()
        threading.Thread(target=self._read_machine, daemon=True).start()

    def latest(self) -> tuple[GpuReport, ...]:
        """Return the last reading of the GPUs, nothing if it is too old."""
        return self._last if time.monotonic() - self._read_at < _FRESH_S else ()

    def _read_machine(self) -> None:
        while True:
            use = read_machine_use(self._directory)
            self.machine = MachineReport.model_validate(
                asdict(use) | {"cpu_percent": min(use.cpu_percent, 100.0)}
            )
            time.sleep(_EVERY_S)

    def _run(self) -> None:
        while True:
            self._last = tuple(GpuReport.model_validate(asdict(use)) for use in self._meter.read())
            self.gpu_processes = tuple(self._others())[:_MOST_PROCESSES]
            self._read_at = time.monotonic()
            time.sleep(_EVERY_S)

    def _others(self) -> Iterator[ForeignGpuProcess]:
        """Yield the processes on the GPUs that belong to no run of this agent."""
        for holder in self._meter.holders():
            if (running.variable(holder.pid, MARKER) or "").startswith(self._ours):
                continue
            user = name = ""
            with suppress(psutil.Error, KeyError):  # of another container, or it has ended
                process = psutil.Process(holder.pid)
                user, name = process.username()[:64], process.name()[:64]
            yield ForeignGpuProcess(
                gpu=holder.gpu, pid=holder.pid, user=user, name=name, memory_gib=holder.memory_gib
            )


def share(found: Sequence[T], number: int, workers: int) -> tuple[T, ...]:
    """Return the items that belong to worker ``number`` of ``workers``: one each, or equal parts.

    If there are fewer GPUs than workers, several share one. This is for display only; LOCAL_RANK decides
    which GPU a process uses.
    """
    first = number * len(found) // workers
    after = max(first + 1, (number + 1) * len(found) // workers)
    return tuple(found[first:after][:_MOST])
