"""Stopping together: on SIGTERM, SIGINT or SIGUSR1 to any process, or on gradients that are not finite."""

from __future__ import annotations

import math
import signal
from types import FrameType
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def ignore_signals(_worker: int = 0) -> None:
    """Ignore the signals in a loader worker: platforms send them to every process of a container.

    The training process handles them; it still needs its workers to finish the step.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class Agreed(NamedTuple):
    """What all processes know of a step: a signal that one of them received, or 0; was the step skipped?"""

    signal: int
    not_finite: bool


class StepOutcome:
    """Remembers a signal and the last gradient, and lets all processes act on them after the same step.

    Nodes do not get their signals at the same time. After every step the processes reduce two numbers; the
    result is copied back while the next step runs and read after that, so that no step waits for a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._received = 0
        self._pending: _Maximum | None = None
        self._device = device
        for number in SIGNALS:
            signal.signal(number, self._remember)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._received == signal.SIGINT:
            raise KeyboardInterrupt
        self._received = number

    def after_step(self, gradient_norm: Tensor | float | None) -> Agreed:
        """Hand in this step's gradient norm; return what was agreed on the step before it.

        All processes call this after every step, and get the same answer.
        """
        answer = self.last_step()
        self._pending = _Maximum(self._received, gradient_norm, self._device)
        return answer

    def last_step(self) -> Agreed:
        """Return what was agreed on the last step, once. Waits for that step: call it before a checkpoint."""
        answer = Agreed(0, not_finite=False) if self._pending is None else self._pending.read()
        self._pending = None
        return answer


class _Maximum:
    """The largest signal number and the worst gradient of all processes, being reduced."""

    def __init__(self, number: int, norm: Tensor | float | None, device: torch.device) -> None:
        pinned = device.type == "cuda"
        # full() is a kernel; a tensor made from a Python number would be a copy that the host waits for.
        on_device = torch.full((2,), number, dtype=torch.int32, device=device)
        if isinstance(norm, Tensor):
            on_device[1:] = (~torch.isfinite(norm.detach())).view(1)
        else:
            on_device[1:].fill_(int(norm is not None and not math.isfinite(norm)))
        if dist.is_initialized():
            dist.all_reduce(on_device, op=dist.ReduceOp.MAX)
        self._on_host = torch.empty(2, dtype=torch.int32, pin_memory=pinned)
        self._on_host.copy_(on_device, non_blocking=True)
        self._copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]
        if self._copied is not None:
            self._copied.record()

    def read(self) -> Agreed:
        if self._copied is not None:
            self._copied.synchronize()  # of a step ago: waits for that step at most, never for this one
        number, not_finite = self._on_host.tolist()
        return Agreed(int(number), bool(not_finite))
