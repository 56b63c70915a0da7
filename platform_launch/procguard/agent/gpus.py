"""The GPUs of the node's workers, read in a thread of its own: a driver in trouble may not answer at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TypeVar

from platform_launch.hardware.gpu_use import GpuMeter
from platform_launch.procguard.wire import Gpu

T = TypeVar("T")

_EVERY_S = 2.0
# What is older says nothing any more: the driver hangs.
_FRESH_S = 15.0
_MOST = 32


class GpuWatch:
    """Keeps the last reading."""

    def __init__(self, meter: GpuMeter) -> None:
        self._meter = meter
        self._last: tuple[Gpu, ...] = ()
        self._read_at = float("-inf")

    def start(self) -> None:
        """Read from now on, as long as the process lives."""
        threading.Thread(target=self._run, daemon=True).start()

    def latest(self) -> tuple[Gpu, ...]:
        """Return the last reading, nothing when there is no fresh one."""
        return self._last if time.monotonic() - self._read_at < _FRESH_S else ()

    def _run(self) -> None:
        while True:
            self._last = tuple(
                Gpu(
                    index=use.index,
                    name=use.name,
                    utilization_percent=use.utilization_percent,
                    memory_used_gib=use.memory_used_gib,
                    memory_total_gib=use.memory_total_gib,
                )
                for use in self._meter.read()
            )
            self._read_at = time.monotonic()
            time.sleep(_EVERY_S)


def share(found: Sequence[T], number: int, workers: int) -> tuple[T, ...]:
    """Return what worker ``number`` of ``workers`` holds: one each where they are as many, else even parts.

    Of fewer GPUs than workers, several hold the same one. These are what a page shows; which GPU a process
    uses, its LOCAL_RANK says.
    """
    first = number * len(found) // workers
    after = max(first + 1, (number + 1) * len(found) // workers)
    return tuple(found[first:after][:_MOST])
