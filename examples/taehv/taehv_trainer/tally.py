"""What the steps between two log lines said: summed on the device and read once, so that no step waits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from taehv_trainer.session import average

_PARTS = ("loss", "reconstruction", "encoder", "latent_error", "mse")


class Tally:
    """Means over forward passes, the share of steps whose gradient was clipped, and the time data took."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(len(_PARTS) + 1, device=device)
        self._passes = self._steps = 0
        self._seen: frozenset[str] = frozenset()
        self._waited_s, self._since = 0.0, time.monotonic()
        self._all_waited_s, self._started = 0.0, self._since

    def forward_pass(self, losses: Mapping[str, Tensor]) -> None:
        """Add what the objective returned."""
        self._seen = frozenset(losses)
        for place, name in enumerate(_PARTS):
            if name in losses:
                self._sums[place] += losses[name].detach().float()
        self._passes += 1

    def step(self, gradient_norm: Tensor | float | None, limit: float) -> None:
        """Add one optimizer step. The norm is that before clipping."""
        self._steps += 1
        if isinstance(gradient_norm, Tensor):
            self._sums[-1] += (gradient_norm > limit).float().squeeze()
        elif gradient_norm is not None:
            self._sums[-1] += float(gradient_norm > limit)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as spent waiting for data."""
        start = time.monotonic()
        yield
        self._waited_s += time.monotonic() - start

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Leave the time inside out: it is no training (validation, checkpoints)."""
        start = time.monotonic()
        yield
        passed = time.monotonic() - start
        self._since += passed
        self._started += passed

    def read(self) -> dict[str, float]:
        """Return the means over all processes since the last call, which all must make."""
        now = time.monotonic()
        passes, steps = max(1, self._passes), max(1, self._steps)
        waited = torch.full((1,), self._waited_s / max(now - self._since, 1e-9), device=self._sums.device)
        *parts, clipped, wait = average(
            torch.cat([self._sums[:-1] / passes, self._sums[-1:] / steps, waited])
        ).tolist()
        self._all_waited_s += self._waited_s
        self._sums.zero_()
        self._passes = self._steps = 0
        self._waited_s, self._since = 0.0, now
        means = {name: mean for name, mean in zip(_PARTS, parts, strict=True) if name in self._seen}
        return {**means, "clipped_share": clipped, "data_wait_share": wait}

    def data_wait_share(self) -> float:
        """Return the share of this process' time since its first step that it waited for data."""
        return (self._all_waited_s + self._waited_s) / max(time.monotonic() - self._started, 1e-9)
