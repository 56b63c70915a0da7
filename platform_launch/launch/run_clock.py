"""Where the time of a run goes, counted as it passes: asked at any time, and at its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from platform_launch.launch.cost import RunCost, StartCost, run_cost
from platform_launch.observe.steps import StepsNamed, StepWatch


class RunClock:
    """Counts the starts of a run. It goes from when it is made, which is when the nodes begin to meet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._starts: list[StartCost] = []
        self._since = clock()
        self._began = 0.0
        self._hung_s = self._slow_s = 0.0
        self._hangs_since: float | None = None
        self._watch: StepWatch | None = None

    def begin(self, log: Path) -> None:
        """A training begins, which writes into ``log``."""
        self._began = self._clock()
        self._hung_s, self._hangs_since, self._slow_s = 0.0, None, 0.0
        watch = StepWatch(log)
        watch.start()
        self._watch = watch

    def end(self) -> None:
        """It has ended."""
        if self._watch is None:
            return
        self._starts.append(self._start(self._watch.stop()))
        self._watch, self._since = None, self._clock()

    def hanging(self, still_s: float | None) -> None:
        """It hangs: nothing has moved for ``still_s``; with None, it has just gone on."""
        if still_s is None:
            self._hung_s, self._hangs_since = self._hung_so_far(), None
        elif self._hangs_since is None:
            self._hangs_since = max(self._clock() - still_s, self._began)

    def slowed(self, total_s: float) -> None:
        """All others have waited for slow ranks for so long in this start."""
        self._slow_s = total_s

    def hung(self, still_s: float) -> None:
        """The start that ended last hung, as another node reports: nothing had moved for ``still_s``."""
        if self._starts and not self._starts[-1].hang_s:
            self._starts[-1] = replace(self._starts[-1], hang_s=still_s)

    def so_far(self) -> RunCost:
        """Return what the run cost until now."""
        running = [self._start(self._watch.named)] if self._watch else []
        return run_cost([*self._starts, *running])

    def _start(self, steps: StepsNamed) -> StartCost:
        now = self._clock()
        return StartCost(
            self._began - self._since, now - self._began, steps, self._hung_so_far(), self._slow_s
        )

    def _hung_so_far(self) -> float:
        hangs_for_s = self._clock() - self._hangs_since if self._hangs_since is not None else 0.0
        return self._hung_s + hangs_for_s

    @property
    def restarts(self) -> int:
        """How many starts there were after the first."""
        return max(len(self._starts) + (self._watch is not None) - 1, 0)
