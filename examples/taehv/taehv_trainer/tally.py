"""Losses and gradients between two log lines: summed on the device and read once, so that no step waits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from taehv_trainer.session import average

_PARTS = ("loss", "reconstruction", "encoder", "adversarial", "latent_error", "mse")


class Tally:
    """Means over what was finite: losses per forward pass, gradients per step; and the time spent on data."""

    def __init__(self, device: torch.device) -> None:
        self._passes = torch.zeros(len(_PARTS) + 1, device=device)  # sums, and the number of passes
        self._steps = torch.zeros(3, device=device)  # norm, clipped, number of steps
        self._seen: frozenset[str] = frozenset()
        self._waited_s, self._since = 0.0, time.monotonic()
        self._all_waited_s, self._started = 0.0, self._since

    def forward_pass(self, losses: Mapping[str, Tensor]) -> None:
        """Add what the objective returned, unless its loss is not finite."""
        self._seen = frozenset(losses)
        zero = torch.zeros_like(losses["loss"])
        values = [losses.get(name, zero).detach().float() for name in _PARTS]
        row = torch.stack([*values, torch.ones_like(values[0])])
        self._passes += torch.where(torch.isfinite(values[0]), row, 0.0)

    def step(self, gradient_norm: Tensor | float | None, limit: float) -> None:
        """Add one optimizer step, unless its gradient is not finite. The norm is that before clipping."""
        if gradient_norm is None:
            return
        if not isinstance(gradient_norm, Tensor):
            gradient_norm = torch.full((), gradient_norm, device=self._steps.device)
        norm = gradient_norm.detach().float().to(self._steps.device).reshape(())
        row = torch.stack([norm, (norm > limit).float(), torch.ones_like(norm)])
        self._steps += torch.where(torch.isfinite(norm), row, 0.0)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as spent waiting for data."""
        start = time.monotonic()
        yield
        self._waited_s += time.monotonic() - start

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Leave the time inside out: it is not training (validation, checkpoints)."""
        start = time.monotonic()
        yield
        passed = time.monotonic() - start
        self._since += passed
        self._started += passed

    def read(self) -> dict[str, float]:
        """Return the means over all processes since the last call, which all must make.

        A mean is NaN if nothing was finite.
        """
        now = time.monotonic()
        share = self._waited_s / max(now - self._since, 1e-9)
        waited = torch.full((1,), share, device=self._passes.device)
        numbers = average(torch.cat([self._passes, self._steps, waited])).tolist()
        *parts, n_passes = numbers[: len(_PARTS) + 1]
        norm, clipped, n_steps, wait = numbers[len(_PARTS) + 1 :]
        self._all_waited_s += self._waited_s
        self._passes.zero_()
        self._steps.zero_()
        self._waited_s, self._since = 0.0, now
        means = {
            name: part / n_passes if n_passes else float("nan")
            for name, part in zip(_PARTS, parts, strict=True)
            if name in self._seen
        }
        gradient = {
            "gradient_norm": norm / n_steps if n_steps else float("nan"),
            "clipped_share": clipped / n_steps if n_steps else 0.0,
        }
        return {**means, **gradient, "data_wait_share": wait}

    def data_wait_share(self) -> float:
        """Return the share of this process' time since its first step that it waited for data."""
        return (self._all_waited_s + self._waited_s) / max(time.monotonic() - self._started, 1e-9)
