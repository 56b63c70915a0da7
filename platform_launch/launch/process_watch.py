"""This node's processes while they run: memory, how busy the GPUs are, and the CPUs that each rank uses."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event as Flag
from threading import Thread
from types import TracebackType

import psutil

from platform_launch.events import Event, event
from platform_launch.hardware import running
from platform_launch.hardware.gpus import Gpu
from platform_launch.hardware.numa import cpu_ranges
from platform_launch.hardware.use import GpuMeter
from platform_launch.observe.memory import MemoryHeld

_GIB = 1024**3
_INTERVAL_S = 5.0
_FIRST_S = 1.0  # a short run should be sampled too
_LAST_WAIT_S = 1.0
_KEPT_READINGS = 12  # of the last minute


class MemoryPeak:
    """Samples every few seconds until it is stopped. ``devices`` are the GPUs that the job uses.

    Shorter peaks may be missed. Shared memory is counted once, if the kernel's cheap figures show it. A GPU's
    memory includes that of other jobs.
    """

    def __init__(self, devices: Sequence[Gpu], interval_s: float = _INTERVAL_S) -> None:
        self.processes_gib = 0.0
        self.gpus_gib: dict[int, float] = {}
        self._busy: dict[int, tuple[int, float]] = {}  # the number of readings, and their sum
        self._last_busy: dict[int, deque[float]] = {}
        self._meter = GpuMeter(devices)
        self._interval_s = interval_s
        self._over = Flag()
        # A driver that hangs must not delay the end of a launch.
        self._thread = Thread(target=self._watch, name="memory-peak", daemon=True)

    def start(self) -> None:
        """Start sampling in a thread. Raises RuntimeError if it cannot be started."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling."""
        self._over.set()
        self._thread.join(_LAST_WAIT_S)

    @property
    def held(self) -> MemoryHeld:
        """The peak so far."""
        busy, last = dict(self._busy), dict(self._last_busy)
        return MemoryHeld(
            self.processes_gib,
            dict(self.gpus_gib),
            {index: total / count for index, (count, total) in busy.items()},
            {index: sum(some := list(readings)) / len(some) for index, readings in last.items()},
        )

    def sample(self) -> None:
        """Sample once."""
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
            if (busy := use.utilization_percent) is not None:
                count, total = self._busy.get(use.index, (0, 0.0))
                self._busy[use.index] = (count + 1, total + busy)
                readings = self._last_busy.get(use.index) or deque(maxlen=_KEPT_READINGS)
                readings.append(busy)
                self._last_busy[use.index] = readings

    def _watch(self) -> None:
        wait_s = min(_FIRST_S, self._interval_s)
        while not self._over.wait(wait_s):
            wait_s = self._interval_s
            with suppress(OSError):  # a useful figure, but not worth failing a job
                self.sample()
        self._meter.close()


def _descendants() -> list[psutil.Process]:
    try:
        return psutil.Process(os.getpid()).children(recursive=True)
    except psutil.Error:
        return []


class BindingWatch:
    """Checks every few seconds while it is entered, until a rank runs on other CPUs.

    ``ranks`` holds the CPUs of each local rank. ``record`` receives events for the log only, ``report`` those
    for the user. A library may move a thread for a moment while it starts, so a rank counts as moved only if
    it was found elsewhere twice in a row.
    """

    def __init__(
        self,
        ranks: Sequence[Sequence[int]],
        *,
        report: Callable[[Event], None],
        record: Callable[[Event], None],
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self._wanted = [frozenset(cpus) for cpus in ranks]
        self._report, self._record = report, record
        self._interval_s = interval_s
        self._verified = False
        self._moved: dict[int, frozenset[int]] = {}
        self._over = Flag()
        self._thread = Thread(target=self._watch, name="binding-watch", daemon=True)

    def __enter__(self) -> BindingWatch:
        if self._wanted:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._wanted:
            self._thread.join(_LAST_WAIT_S)

    def check(self) -> bool:
        """Compare once; return whether a moved rank was reported."""
        found = affinities()
        moved = {
            rank: cpus
            for rank, cpus in found.items()
            if rank < len(self._wanted) and not cpus <= self._wanted[rank]
        }
        again = {rank: cpus for rank, cpus in moved.items() if self._moved.get(rank) == cpus}
        self._moved = moved
        for rank, cpus in again.items():
            wanted = cpu_ranges(self._wanted[rank])
            self._report(event("binding-undone", local_rank=rank, wanted=wanted, found=cpu_ranges(cpus)))
            return True
        if len(found) == len(self._wanted) and not moved and not self._verified:
            self._verified = True
            self._record(event("binding-verified", ranks=len(found)))
        return False

    def _watch(self) -> None:
        while not self._over.wait(self._interval_s):
            with suppress(OSError, psutil.Error):  # useful, but not worth failing a job
                if self.check():
                    return


def affinities() -> dict[int, frozenset[int]]:
    """Return the CPUs of each local rank among this process's descendants, without its helpers."""
    found: dict[int, frozenset[int]] = {}
    ranks: dict[int, str | None] = {}
    for process in psutil.Process(os.getpid()).children(recursive=True):
        with suppress(OSError, psutil.Error):
            ranks[process.pid] = rank = running.variable(process.pid, "LOCAL_RANK")
            if rank is not None and rank.isdecimal() and ranks.get(process.ppid()) is None:
                found[int(rank)] = frozenset(os.sched_getaffinity(process.pid))
    return found
