"""What a run costs: which part of its time advanced the job, and how the rest was spent.

RunClock counts while the run lasts and can be queried at any time; the rest are functions of values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from platform_launch.observe.steps import StepReading, StepsNamed, StepWatch
from platform_launch.text import Phrase, counted, joined, seconds

# Fewer readings, or a shorter time, do not show how the speed changed.
_ENOUGH_READINGS = 8
_ENOUGH_S = 120.0
# The log is read once a second, so steps within one reading have no measurable speed.
_MEASURABLE_S = 2.0
# Starting takes most of a shorter run, so that its productive share says nothing.
_SHARE_AFTER_S = 60.0


@dataclass(frozen=True)
class StartCost:
    """One attempt: how long this node waited for the others, how long it ran, and the steps it printed.

    ``hang_s`` is how long it hung, until it continued or ended; ``slow_s`` is how long the other ranks waited
    for slow ones. ``decided_s`` is the part of ``waited_s`` until all nodes knew that it restarts.
    """

    waited_s: float
    trained_s: float
    steps: StepsNamed = field(default_factory=StepsNamed)
    hang_s: float = 0.0
    slow_s: float = 0.0
    decided_s: float = 0.0


@dataclass(frozen=True)
class RunCost:
    """What a run cost, in seconds of this node. Values are None if the output has no steps.

    ``lost_steps`` of the ``steps`` were repeated after restarts. ``starting_s`` is the time from each start
    to its first step, ``restart_s`` the time between attempts, of which it took ``deciding_s`` until all
    nodes knew that there would be another one.
    ``productive_share`` is the share of the total time spent on steps that were kept. ``speed_change`` is the
    speed of the last quarter relative to the first, minus 1. ``slow_s`` is the part of ``training_s`` in
    which the other ranks waited for slow ones, as node 0 knows it. ``step`` is the last step printed,
    ``target_step`` the last one that the output announces, ``eta_s`` the time until then.
    """

    steps: int | None
    lost_steps: int
    step: int | None
    target_step: int | None
    first_step_s: float | None
    waiting_s: float
    starting_s: float
    training_s: float
    hang_s: float
    restart_s: float
    productive_share: float | None
    steps_per_s: float | None
    speed_change: float | None
    eta_s: float | None
    slow_s: float = 0.0
    deciding_s: float = 0.0

    def as_dict(self) -> dict[str, object]:
        """Return the form for the launch record."""
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }

    def describe(self) -> Phrase:
        """Return the cost as one line."""
        parts: list[Phrase] = []
        if self.steps is not None:
            lost = (
                Phrase(", {lost} of them lost by restarts", lost=self.lost_steps) if self.lost_steps else ""
            )
            parts.append(Phrase("{steps}{lost}", steps=counted(self.steps, "step"), lost=lost))
        if self.first_step_s is not None:
            parts.append(Phrase("the first after {time}", time=seconds(self.first_step_s)))
        detail = Phrase(
            " ({deciding} to decide, {connecting} to connect)",
            deciding=seconds(self.deciding_s),
            connecting=seconds(self.restart_s - self.deciding_s),
        )
        spent = {
            "{time} waiting for nodes": self.waiting_s,
            "{time} starting": self.starting_s,
            "{time} training": self.training_s,
            "{time} hanging": self.hang_s,
        }
        shown = [Phrase(words, time=seconds(value)) for words, value in spent.items() if value >= 0.5]
        if self.restart_s >= 0.5:
            shown.append(Phrase("{time} restarting{detail}", time=seconds(self.restart_s), detail=detail))
        parts.append(joined(shown or [seconds(0)]))
        total_s = self.restart_s + sum(spent.values())
        if self.productive_share is not None and total_s >= _SHARE_AFTER_S:
            parts.append(Phrase("{share:.0%} productive", share=self.productive_share))
        if self.steps_per_s:
            speed, change = self.steps_per_s, self.speed_change
            since = "" if change is None else Phrase(" ({change:+.0%} since the beginning)", change=change)
            parts.append(Phrase("{speed:.3g} steps/s{change}", speed=speed, change=since))
        if self.slow_s >= 0.5:
            parts.append(Phrase("{time} waiting for slow ranks", time=seconds(self.slow_s)))
        if self.eta_s:
            parts.append(Phrase("{time} to go", time=seconds(self.eta_s)))
        return joined(parts, "; ")


def run_cost(starts: Sequence[StartCost]) -> RunCost:
    """Return the cost of a run from its starts, in order."""
    named = [start.steps.readings for start in starts]
    done = sum(_steps_done(start.steps) for start in starts)
    lost = _lost_steps([readings for readings in named if readings])
    waiting, restart = starts[0].waited_s if starts else 0.0, sum(start.waited_s for start in starts[1:])
    hang = sum(start.hang_s for start in starts)
    starting = sum(readings[0].at_s for readings in named if readings)
    training = max(sum(start.trained_s for start in starts) - starting - hang, 0.0)
    total = waiting + restart + hang + starting + training
    share = training * (1 - lost / done) / total if done and total else None
    last = starts[-1].steps if starts else StepsNamed()
    speed = _speed(last.readings)
    step = last.readings[-1].step if last.readings else None
    left = last.target - step if last.target is not None and step is not None else 0
    return RunCost(
        steps=done or None,
        lost_steps=lost,
        step=step,
        target_step=last.target,
        first_step_s=named[0][0].at_s + waiting if named and named[0] else None,
        waiting_s=waiting,
        starting_s=starting,
        training_s=training,
        hang_s=hang,
        restart_s=restart,
        productive_share=share,
        steps_per_s=speed,
        speed_change=_change(last.readings),
        eta_s=left / speed if speed and left > 0 else None,
        slow_s=sum(start.slow_s for start in starts),
        deciding_s=sum(start.decided_s for start in starts[1:]),
    )


def _steps_done(named: StepsNamed) -> int:
    """Return how many steps a start did; counting from 0 to the last step would give one too many."""
    if not named.readings:
        return 0
    steps = named.readings[-1].step - named.readings[0].step + 1
    return steps if named.target is None else min(steps, named.target)


def _lost_steps(named: Sequence[Sequence[StepReading]]) -> int:
    """Return how many steps were repeated: each start begins at a checkpoint of an earlier one."""
    lost = reached = 0
    for readings in named:
        lost += max(0, min(reached, readings[-1].step) - readings[0].step + 1) if reached else 0
        reached = max(reached, readings[-1].step)
    return lost


def _speed(readings: Sequence[StepReading]) -> float | None:
    if len(readings) < 2 or (took_s := readings[-1].at_s - readings[0].at_s) < _MEASURABLE_S:
        return None
    return (readings[-1].step - readings[0].step) / took_s


def _change(readings: Sequence[StepReading]) -> float | None:
    if len(readings) < _ENOUGH_READINGS or readings[-1].at_s - readings[0].at_s < _ENOUGH_S:
        return None
    quarter = len(readings) // 4
    early, late = _speed(readings[: quarter + 1]), _speed(readings[-quarter - 1 :])
    return late / early - 1 if early and late is not None else None


class RunClock:
    """Measures the starts of a run. ``since`` is when the rendezvous began, on ``clock``; None: now."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, since: float | None = None) -> None:
        self._clock = clock
        self._starts: list[StartCost] = []
        self._since = self._decided = clock() if since is None else since
        self._began = 0.0
        self._hung_s = self._slow_s = 0.0
        self._hangs_since: float | None = None
        self._watch: StepWatch | None = None

    def begin(self, log: Path) -> None:
        """Record that the processes of an attempt start; they write to ``log``."""
        self._began = self._clock()
        self._hung_s, self._hangs_since, self._slow_s = 0.0, None, 0.0
        watch = StepWatch(log)
        watch.start()
        self._watch = watch

    def end(self) -> None:
        """Record that they have ended."""
        if self._watch is None:
            return
        self._starts.append(self._start(self._watch.stop()))
        self._watch, self._since = None, self._clock()

    def decided(self) -> None:
        """Record that all nodes know how the last attempt ended."""
        self._decided = self._clock()

    def hanging(self, still_s: float | None) -> None:
        """Record that the job hangs, without progress for ``still_s``; None: it has just continued."""
        if still_s is None:
            self._hung_s, self._hangs_since = self._hung_so_far(), None
        elif self._hangs_since is None:
            self._hangs_since = max(self._clock() - still_s, self._began)

    def slowed(self, total_s: float) -> None:
        """Record how long the other ranks have waited for slow ones in this start."""
        self._slow_s = total_s

    def hung(self, still_s: float) -> None:
        """Record that the last start hung, as another node reports, without progress for ``still_s``."""
        if self._starts and not self._starts[-1].hang_s:
            self._starts[-1] = replace(self._starts[-1], hang_s=still_s)

    def so_far(self) -> RunCost:
        """Return the cost of the run so far. The remaining time is unknown if no processes run any more."""
        if self._watch is None:
            return replace(run_cost(self._starts), eta_s=None)
        return run_cost([*self._starts, self._start(self._watch.named)])

    def _start(self, steps: StepsNamed) -> StartCost:
        now = self._clock()
        return StartCost(
            self._began - self._since,
            now - self._began,
            steps,
            self._hung_so_far(),
            self._slow_s,
            max(0.0, self._decided - self._since),
        )

    def _hung_so_far(self) -> float:
        hangs_for_s = self._clock() - self._hangs_since if self._hangs_since is not None else 0.0
        return self._hung_s + hangs_for_s

    @property
    def restarts(self) -> int:
        """The number of starts after the first."""
        return max(len(self._starts) + (self._watch is not None) - 1, 0)
