"""How fast a training goes, from its own output: the steps it counts, and when they came."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

from platform_launch.observe.steps import StepFollower

_READ_EVERY_S = 2.0
_WINDOW_S = 120.0


class StepMeter:
    """Reads what is new in a run's output, and tells the steps of each second; None while it counts none."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._follower: StepFollower | None = None
        self._next_at = 0.0
        self._steps: deque[tuple[float, int]] = deque(maxlen=64)

    def read(self, path: Path | None) -> float | None:
        """Return the rate of the run whose output lies at ``path``; cheap, and never raises."""
        now = time.monotonic()
        if path != self._path:
            self._path, self._follower = path, StepFollower(path) if path is not None else None
            self._steps.clear()
        elif now < self._next_at:
            return self._rate(now)
        self._next_at = now + _READ_EVERY_S
        if self._follower is not None and (found := self._follower.read()):
            self._note(found[-1].step, now)
        return self._rate(now)

    def _note(self, step: int, now: float) -> None:
        if self._steps and step < self._steps[-1][1]:  # another epoch, or a checkpoint that was gone back to
            self._steps.clear()
        self._steps.append((now, step))

    def _rate(self, now: float) -> float | None:
        while self._steps and now - self._steps[0][0] > _WINDOW_S:
            self._steps.popleft()
        if len(self._steps) < 2:
            return None
        (first_at, first), (last_at, last) = self._steps[0], self._steps[-1]
        return (last - first) / (last_at - first_at)
