"""The most memory that this node's training held at any time: its processes together, and each GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from threading import Event as Flag
from threading import Thread
from types import TracebackType

import psutil

from platform_launch.events import Event, event
from platform_launch.hardware.gpus import Gpu
from platform_launch.hardware.use import GpuMeter
from platform_launch.observe.memory import MemoryHeld

_GIB = 1024**3
_INTERVAL_S = 5.0
_FIRST_S = 1.0  # a short training is to be seen, too
_LAST_WAIT_S = 1.0


class MemoryPeak:
    """Looks every few seconds while it is entered. ``devices`` are the GPUs that the training uses.

    What a process held for less than that may be missed. Memory that processes share is counted once, as far
    as the kernel's cheap figures tell; a GPU's is all that is in use on it, by whomever.
    """

    def __init__(self, devices: Sequence[Gpu], interval_s: float = _INTERVAL_S) -> None:
        self.processes_gib = 0.0
        self.gpus_gib: dict[int, float] = {}
        self._meter = GpuMeter(devices)
        self._interval_s = interval_s
        self._over = Flag()
        # A driver that hangs must not hold up the end of a launch.
        self._thread = Thread(target=self._watch, name="memory-peak", daemon=True)

    def __enter__(self) -> MemoryPeak:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(_LAST_WAIT_S)

    @property
    def held(self) -> MemoryHeld:
        """The most of each that was seen so far."""
        return MemoryHeld(self.processes_gib, dict(self.gpus_gib))

    def as_event(self) -> Event | None:
        """Return what to say of it; None where nothing was seen."""
        held = self.held
        if not held:
            return None
        return event("memory-peak", **held.as_dict(), processes=held.processes, gpus=held.gpus)

    def sample(self) -> None:
        """Take one reading."""
        private = shared = 0
        for process in _descendants():
            with suppress(psutil.Error):
                memory = process.memory_info()
                private += max(0, memory.rss - memory.shared)
                shared = max(shared, memory.shared)
        self.processes_gib = max(self.processes_gib, (private + shared) / _GIB)
        for use in self._meter.read():
            if use.memory_used_gib is not None:
                self.gpus_gib[use.index] = max(self.gpus_gib.get(use.index, 0.0), use.memory_used_gib)

    def _watch(self) -> None:
        wait_s = min(_FIRST_S, self._interval_s)
        while not self._over.wait(wait_s):
            wait_s = self._interval_s
            with suppress(OSError):  # a worth-having figure, never worth a training
                self.sample()
        self._meter.close()


def _descendants() -> list[psutil.Process]:
    try:
        return psutil.Process(os.getpid()).children(recursive=True)
    except psutil.Error:
        return []
