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
    read one step later, so that a GPU is never waited for.
    """

    def __init__(self, device: torch.device) -> None:
        self._received = 0
        self._device = device
        self._under_way: torch.Tensor | None = None
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
        answer = 0 if self._under_way is None else int(self._under_way.item())
        self._under_way = torch.tensor(self._received, dtype=torch.int32, device=self._device)
        dist.all_reduce(self._under_way, op=dist.ReduceOp.MAX)
        return answer
