"""The steps that a training names in its output, read along as its log grows, and when it named them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

_LOOK_S = 1.0
_MOST_READINGS = 128
# Of a log that grows faster the latest lines are enough.
_MOST_BYTES = 256 * 1024
_LONGEST_REST = 4096
# ``Step 120/1000``, ``global_step=120``, ``step: 120 of 1000``: the step, and the last one if it is told.
_STEP = re.compile(
    r"\b(?:global[ _]?)?steps?['\"]?[ :=#]{1,3}(\d{1,12})\b(?:\s*(?:/|of)\s*(\d{1,12})\b)?", re.IGNORECASE
)


class NamedStep(NamedTuple):
    """A step, and the last one of the training where it is told with it."""

    step: int
    target: int | None


def named_steps(output: str) -> list[NamedStep]:
    """Return the steps that an output names, in its order."""
    return [NamedStep(int(step), int(target) if target else None) for step, target in _STEP.findall(output)]


def highest_step(log: str) -> int | None:
    """Return the highest step an output names."""
    return max((named.step for named in named_steps(log)), default=None)


class StepFollower:
    """Reads a log from its beginning, and on from there; a log that cannot be read names no steps."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = 0
        self._rest = b""  # a line that is being written

    def skip(self) -> None:
        """Go on at the present end of the log."""
        self._offset = self._size()

    def read(self) -> list[NamedStep]:
        """Return the steps that were named since."""
        size = self._size()
        if size < self._offset:  # a new file under the same name
            self._offset, self._rest = 0, b""
        if size <= self._offset:
            return []
        start = max(self._offset, size - _MOST_BYTES)
        try:
            with self._log.open("rb") as file:
                file.seek(start)
                data = file.read(size - start)
        except OSError:
            return []
        text = (self._rest if start == self._offset else b"") + data
        self._offset = start + len(data)
        whole, newline, rest = text.replace(b"\r", b"\n").rpartition(b"\n")
        self._rest = rest[-_LONGEST_REST:]
        return named_steps((whole + newline).decode(errors="replace"))

    def _size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0


@dataclass(frozen=True)
class StepReading:
    """A step was named ``at_s`` seconds after the training began."""

    at_s: float
    step: int


@dataclass(frozen=True)
class StepsNamed:
    """The steps of one start, thinned out; ``target`` is the last one that the output announces."""

    readings: tuple[StepReading, ...] = ()
    target: int | None = None


class StepWatch:
    """Reads along from the end of a log; a convenience that never holds up or ends a training."""

    def __init__(self, log: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._follower = StepFollower(log)
        self._clock = clock
        self._readings: list[StepReading] = []
        self._target: int | None = None
        self._every, self._seen = 1, 0
        self._ended = Event()
        self._thread = Thread(target=self._follow, name="steps", daemon=True)
        self._began = clock()

    def start(self) -> None:
        """Begin: what comes from now on is the training's."""
        self._began = self._clock()
        self._follower.skip()
        self._thread.start()

    def stop(self) -> StepsNamed:
        """Read the rest, and return what was named."""
        self._ended.set()
        self._thread.join(_LOOK_S)  # not for ever: a log on a network file system can hang
        return self.named

    @property
    def named(self) -> StepsNamed:
        """What was named so far."""
        return StepsNamed(tuple(self._readings), self._target)

    def _follow(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._take(self._follower.read())
        self._take(self._follower.read())

    def _take(self, found: list[NamedStep]) -> None:
        if not found:
            return
        numbers = [named.step for named in found]
        targets = [named.target for named in found if named.target is not None]
        if not self._readings:
            self._note(min(numbers), targets)
        self._note(max(numbers), targets)

    def _note(self, step: int, targets: list[int]) -> None:
        self._target = targets[-1] if targets else self._target
        reading = StepReading(self._clock() - self._began, step)
        if self._readings and step <= self._readings[-1].step:
            return
        self._seen += 1
        # The last one is always kept; of those before it every 2nd, 4th, … once there are many.
        if len(self._readings) > 1 and (self._seen - 1) % self._every:
            self._readings[-1] = reading
            return
        self._readings.append(reading)
        if len(self._readings) > _MOST_READINGS:
            self._readings = [*self._readings[::2], reading]
            self._every *= 2
