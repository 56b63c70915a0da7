"""The steps in a job's output, read as its log grows, and when they appeared."""

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
# If a log grows faster, the latest lines are enough.
_MOST_BYTES = 256 * 1024
_LONGEST_REST = 4096
# The launcher's own lines, which may quote steps: ``[node 0] 10:00:00 [INFO] …``.
_OF_THE_LAUNCHER = re.compile(r"\[node \d+\] \d\d:\d\d:\d\d \[[A-Z]+\]")
# tqdm: ``Epoch 3:  45%|████▌     | 45/100 [00:01<00:02, …`` with its description, if it has one.
_BAR = re.compile(r"%\|[^|]*\|\s{0,9}(?P<done>\d{1,12})/(?P<all>\d{1,12}) \[\d+:")
_BARE_BAR = re.compile(r"\s{0,9}(?P<done>\d{1,12})/(?P<all>\d{1,12}) \[\d+:\d\d(?::\d\d)?<")
_BAR_OF_STEPS = re.compile(r"(?:.*\b(?:train\w*|steps?|iter\w*)\b.*|(?:epoch\W*)?)$", re.IGNORECASE)
_BAR_OF_AN_EPOCH = re.compile(r"epoch\W*(\d+)(?:/\d+)?\W*$", re.IGNORECASE)
_STEP = re.compile(
    r"(?<![\w-])(?:global[ _])?(?:step|iter|iteration)['\"]?\s{0,9}[:=#]?\s{0,9}\[?\s{0,9}(?P<done>\d{1,12})"
    r"\b(?:\s{0,9}(?:/|of)\s{0,9}(?P<all>\d{1,12})\b)?",
    re.IGNORECASE,
)
_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]|\([^()]*\)")
_FOLLOWED_BY_A_NUMBER = re.compile(r"\W*[\w/.]+['\"]?\s?[:=]?\s{0,9}[-+]?[\d(\[]")
_SIGNS = ("tep", "TEP", "ter", "TER", "/")
_LONGEST_LINE = 2000


class NamedStep(NamedTuple):
    """A step, and the last step of the job if the line names it."""

    step: int
    target: int | None


def named_steps(output: str) -> list[NamedStep]:
    """Return the steps in the progress lines of an output, in order.

    Progress lines are tqdm bars, and lines that contain only names and numbers besides the step. Sentences,
    command lines and messages of the launcher do not count.
    """
    return [step for line in re.split(r"[\r\n]+", output) if (step := _step_of(line)) is not None]


def _step_of(line: str) -> NamedStep | None:
    line = line[:_LONGEST_LINE]
    if not any(sign in line for sign in _SIGNS) or _OF_THE_LAUNCHER.match(line):
        return None
    if bar := _BAR.search(line) or _BARE_BAR.match(line):
        description = line[: bar.start()].rstrip("0123456789 ")
        return _step_of_bar(description, int(bar["done"]), int(bar["all"]))
    for found in _STEP.finditer(line):
        has_target = found["all"] is not None
        if _is_no_sentence(line[: found.start()]) and (
            has_target or _goes_on_in_numbers(line[found.end() :])
        ):
            return NamedStep(int(found["done"]), int(found["all"]) if has_target else None)
    return None


def _is_no_sentence(before: str) -> bool:
    """Return whether only times, levels, logger names and named numbers precede a step."""
    tokens = _IN_BRACKETS.sub(" ", before).split()
    return all(_is_label(token, after) for token, after in zip(tokens, [*tokens, ""][1:], strict=True))


def _is_label(token: str, after: str) -> bool:
    word = token.strip("'\"{}()[],;|")
    return (
        not any(letter.isalpha() for letter in word)
        or any(sign.isdigit() for sign in word)
        or word.isupper()
        or word.endswith((":", "="))
        or word.lower() in ("train", "training")
        or after[:1] in ("-", "|", ":", "=")
        or after[:1].isdigit()
    )


def _goes_on_in_numbers(rest: str) -> bool:
    """Return whether only named numbers follow the step, as in a progress line."""
    rest = rest.strip(" \t.'\"}")
    if rest[:1] in ("|", ",", ";", ":", "(", "[", "-", ")", "]"):
        return not rest[1:].strip() or any(sign.isdigit() for sign in rest)
    return not rest or _FOLLOWED_BY_A_NUMBER.match(rest) is not None


def _step_of_bar(description: str, done: int, of_all: int) -> NamedStep | None:
    """Return the step of a tqdm bar; bars of downloads, shards or evaluations have other names."""
    name = description.rsplit("]:", 1)[-1].strip().rstrip(":")
    if epoch := _BAR_OF_AN_EPOCH.search(name):  # each epoch has a new bar
        return NamedStep(int(epoch[1]) * of_all + done, None)
    return NamedStep(done, of_all) if _BAR_OF_STEPS.match(name) else None


def highest_step(log: str) -> int | None:
    """Return the highest step in an output."""
    return max((named.step for named in named_steps(log)), default=None)


class StepFollower:
    """Reads a log from its beginning as it grows; a log that cannot be read has no steps."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = 0
        self._rest = b""  # an unfinished line

    def skip(self) -> None:
        """Skip to the current end of the log."""
        self._offset = self._size()

    def read(self) -> list[NamedStep]:
        """Return the steps since the last call."""
        return named_steps(self.read_lines())

    def read_lines(self) -> str:
        """Return the complete lines since the last call."""
        size = self._size()
        if size < self._offset:  # a new file under the same name
            self._offset, self._rest = 0, b""
        if size <= self._offset:
            return ""
        start = max(self._offset, size - _MOST_BYTES)
        try:
            with self._log.open("rb") as file:
                file.seek(start)
                data = file.read(size - start)
        except OSError:
            return ""
        text = (self._rest if start == self._offset else b"") + data
        self._offset = start + len(data)
        whole, newline, rest = text.replace(b"\r", b"\n").rpartition(b"\n")
        self._rest = rest[-_LONGEST_REST:]
        return (whole + newline).decode(errors="replace")

    def _size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0


@dataclass(frozen=True)
class StepReading:
    """A step appeared ``at_s`` seconds after the attempt began."""

    at_s: float
    step: int


@dataclass(frozen=True)
class StepsNamed:
    """The steps of one attempt, thinned out; ``target`` is the last step that the output announces."""

    readings: tuple[StepReading, ...] = ()
    target: int | None = None


class StepWatch:
    """Follows the end of a log; never delays or ends a job."""

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
        """Start: output from now on belongs to the attempt."""
        self._began = self._clock()
        self._follower.skip()
        self._thread.start()

    def stop(self) -> StepsNamed:
        """Read the rest, and return the steps."""
        self._ended.set()
        self._thread.join(_LOOK_S)  # with a limit: a log on a network file system can hang
        return self.named

    @property
    def named(self) -> StepsNamed:
        """The steps so far."""
        return StepsNamed(tuple(self._readings), self._target)

    def _follow(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._record_steps(self._follower.read())
        self._record_steps(self._follower.read())

    def _record_steps(self, found: list[NamedStep]) -> None:
        if not found:
            return
        # The bar of an evaluation looks like the job's own, and is shorter.
        largest = max((named.target for named in found if named.target is not None), default=None)
        known = max(filter(None, (largest, self._target)), default=None)
        found = [named for named in found if named.target is None or named.target == known]
        numbers = [named.step for named in found]
        if not numbers:
            return
        targets = [named.target for named in found if named.target is not None]
        if not self._readings:
            self._record_step(min(numbers), targets)
        self._record_step(max(numbers), targets)

    def _record_step(self, step: int, targets: list[int]) -> None:
        self._target = targets[-1] if targets else self._target
        reading = StepReading(self._clock() - self._began, step)
        if self._readings and step <= self._readings[-1].step:
            return
        self._seen += 1
        # The last one is always kept; of the others, every 2nd, 4th, … once there are many.
        if len(self._readings) > 1 and (self._seen - 1) % self._every:
            self._readings[-1] = reading
            return
        self._readings.append(reading)
        if len(self._readings) > _MOST_READINGS:
            self._readings = [*self._readings[::2], reading]
            self._every *= 2
