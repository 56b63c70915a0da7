"""Leaving together when any process is told to: SIGTERM, SIGINT, SIGUSR1 (a batch system's early warning)."""

from __future__ import annotations

import signal
from types import FrameType

import torch
import torch.distributed as dist

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Remembers a signal, and tells every process of the job after the same step.

    Nodes do not get their signals at the same time. Every step the processes reduce one number; its result is
    copied back while the next step runs and read after that, so that no step waits for a GPU to be idle.
    """

    def __init__(self, device: torch.device) -> None:
        self._received = 0
        self._under_way: _Maximum | None = None
        self._device = device
        for number in SIGNALS:
            signal.signal(number, self._remember)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._received == signal.SIGINT:
            raise KeyboardInterrupt
        self._received = number

    def agreed(self) -> int:
        """Return the number of a signal that some process got before the previous call, or 0.

        All processes call this after every step, and get the same answer.
        """
        if not dist.is_initialized():
            return self._received
        answer = 0 if self._under_way is None else self._under_way.read()
        self._under_way = _Maximum(self._received, self._device)
        return answer


class _Maximum:
    """The largest number of all processes, under way."""

    def __init__(self, number: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        # full() is a kernel; a tensor made from a Python number would be a copy that the host waits for.
        on_device = torch.full((1,), number, dtype=torch.int32, device=device)
        dist.all_reduce(on_device, op=dist.ReduceOp.MAX)
        self._on_host = torch.empty(1, dtype=torch.int32, pin_memory=pinned)
        self._on_host.copy_(on_device, non_blocking=True)
        self._copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]
        if self._copied is not None:
            self._copied.record()

    def read(self) -> int:
        if self._copied is not None:
            self._copied.synchronize()  # of a step ago: waits for that step at most, never for this one
        return int(self._on_host[0])
