"""Where the time of a run goes, counted as it passes: asked at any time, and at its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from platform_launch.launch.cost import RunCost, StartCost, run_cost
from platform_launch.observe.steps import StepWatch


class RunClock:
    """Counts the starts of a run. It goes from when it is made, which is when the nodes begin to meet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._starts: list[StartCost] = []
        self._since = clock()
        self._began = 0.0
        self._watch: StepWatch | None = None

    def begin(self, log: Path) -> None:
        """A training begins, which writes into ``log``."""
        self._began = self._clock()
        watch = StepWatch(log)
        watch.start()
        self._watch = watch

    def end(self) -> None:
        """It has ended."""
        if self._watch is None:
            return
        now = self._clock()
        start = StartCost(self._began - self._since, now - self._began, self._watch.stop())
        self._starts.append(start)
        self._watch, self._since = None, now

    def hung(self, still_s: float) -> None:
        """The start that ended last was ended for a hang: nothing had moved for ``still_s`` before."""
        if self._starts:
            self._starts[-1] = replace(self._starts[-1], hang_s=still_s)

    def so_far(self) -> RunCost:
        """Return what the run cost until now."""
        now, watch = self._clock(), self._watch
        running = [StartCost(self._began - self._since, now - self._began, watch.named)] if watch else []
        return run_cost([*self._starts, *running])

    @property
    def restarts(self) -> int:
        """How many starts there were after the first."""
        return max(len(self._starts) + (self._watch is not None) - 1, 0)
