"""How a script reacted to a fault: the start that it ended and the next one, compared with one without a
fault. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise

from platform_launch.observe.steps import named_steps
from platform_launch.text import Phrase

# ``loss: 0.31``, ``'train_loss': 3.1e-1``; not the loss of an evaluation
_LOSS = re.compile(
    r"(?<![A-Za-z_])(?:train(?:ing)?[ _/])?loss['\"]?\s{0,4}[:=]?\s{0,4}([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)",
    re.I,
)
_EPOCH = re.compile(r"\bepoch['\"]?\s{0,4}[:=#]?\s{0,4}\[?(\d{1,9})(?![\d.])", re.IGNORECASE)
# Losses printed with three digits may differ this much by rounding.
_LOSS_TOLERANCE = 0.005
# Relative to the difference between two undisturbed starts.
_NOISE_FACTOR = 3.0
# Samples that are repeated, beyond those repeated in an undisturbed start.
_REPEATED_SHARE = 0.25


@dataclass(frozen=True)
class LoggedStep:
    """A step in a line of the log, with the epoch and the loss if the line has them."""

    step: int
    epoch: int = 0
    loss: float | None = None


def steps_in(lines: str) -> list[LoggedStep]:
    """Return the steps of a log's lines; a loss on a line without a step belongs to the step before."""
    found: list[LoggedStep] = []
    for line in re.split(r"[\r\n]+", lines):
        loss, epoch = _LOSS.search(line), _EPOCH.search(line)
        for named in named_steps(line):
            found.append(
                LoggedStep(named.step, int(epoch[1]) if epoch else 0, float(loss[1]) if loss else None)
            )
            break
        else:
            if loss and found and found[-1].loss is None:
                found[-1] = replace(found[-1], loss=float(loss[1]))
    return found


@dataclass(frozen=True)
class SeenStart:
    """One start. ``exit_code`` is None if the drill ended it, because it had seen enough or there was no
    progress.

    ``saved_at`` are the numbers of printed steps at which a checkpoint was complete. ``data`` are the samples
    of each rank's batches, as checksums; ``reason`` is the launcher's cause of a failure, or a description of
    a hang. ``killed``: the ranks did not exit within the grace period. ``saved_after_request`` is None
    without SIGTERM.
    """

    steps: tuple[LoggedStep, ...] = ()
    saved_at: tuple[int, ...] = ()
    exit_code: int | None = None
    is_stuck: bool = False
    reason: str = ""
    killed: bool = False
    saved_after_request: bool | None = None
    data: Mapping[int, Sequence[Sequence[str]]] = field(default_factory=dict)


class NextStart(str, Enum):
    """What the start after a fault did."""

    RESUMED = "resumed"
    FROM_SCRATCH = "from-scratch"
    LOADED_DAMAGED = "loaded-damaged"
    NOT_STARTED = "not-started"
    STUCK = "stuck"
    FINISHED = "finished"


class Mistake(str, Enum):
    """Other mistakes of the script."""

    SIGTERM_IGNORED = "sigterm-ignored"
    NOT_SAVED = "not-saved-on-sigterm"
    LOSS_JUMPED = "loss-jumped"
    DATA_REPEATED = "data-repeated"


@dataclass(frozen=True)
class FaultResult:
    """How a script reacted to one fault.

    ``before`` is the last step before it, ``resumed_at`` the step from which the next start continued, both
    as counted in the log. ``losses`` are those after the fault and without it, at step ``loss_step``.
    """

    fault: str
    outcome: NextStart
    before: int
    resumed_at: int | None = None
    lost: int | None = None
    problems: tuple[Mistake, ...] = ()
    losses: tuple[float, float] | None = None
    loss_step: int | None = None
    repeated_share: float | None = None
    exit_code: int | None = None
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Whether the job continued from a checkpoint as if nothing had happened."""
        return self.outcome is NextStart.RESUMED and not self.problems

    def lines(self) -> list[Phrase]:
        """Return what the next start did, then what else went wrong."""
        return [self._outcome_line(), *(self._problem_line(problem) for problem in self.problems)]

    def _outcome_line(self) -> Phrase:
        if self.outcome is NextStart.RESUMED:
            return Phrase("resumed at step {step} (lost {lost})", step=self.resumed_at, lost=self.lost)
        if self.outcome is NextStart.FROM_SCRATCH:
            return Phrase("started from scratch (lost {lost})", lost=self.lost)
        if self.outcome is NextStart.LOADED_DAMAGED:
            return Phrase("loaded the half-written checkpoint, at step {step}", step=self.resumed_at)
        if self.outcome is NextStart.STUCK:
            return Phrase(
                "the next start hung: {reason}", reason=self.reason or Phrase("no step was printed")
            )
        if self.outcome is NextStart.FINISHED:
            return Phrase("the next start finished without training a step")
        reason = Phrase(": {reason}", reason=self.reason) if self.reason else ""
        return Phrase(
            "the next start failed with exit code {code}{reason}", code=self.exit_code, reason=reason
        )

    def _problem_line(self, problem: Mistake) -> Phrase:
        if problem is Mistake.SIGTERM_IGNORED:
            return Phrase("ignored SIGTERM until the grace period ended")
        if problem is Mistake.NOT_SAVED:
            return Phrase("wrote no checkpoint after SIGTERM")
        if problem is Mistake.DATA_REPEATED:
            return Phrase(
                "data repeated: {share:.0f}% of the samples were seen before",
                share=100 * (self.repeated_share or 0),
            )
        after, undisturbed = self.losses or (0.0, 0.0)
        return Phrase(
            "loss jumped: {after:g} at step {step}, {undisturbed:g} without the fault",
            after=after,
            step=self.loss_step,
            undisturbed=undisturbed,
        )

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "fault": self.fault,
            "passed": self.passed,
            "outcome": self.outcome.value,
            "problems": [problem.value for problem in self.problems],
            "step_before": self.before,
            "resumed_at": self.resumed_at,
            "lost": self.lost,
            "loss_step": self.loss_step,
            "loss": self.losses[0] if self.losses else None,
            "loss_without_fault": self.losses[1] if self.losses else None,
            "repeated_share": self.repeated_share,
            "exit_code": self.exit_code,
            "reason": self.reason,
        }


class Baseline:
    """The start without a fault, with which the others are compared."""

    def __init__(self, seen: SeenStart) -> None:
        self._seen = seen
        numbers = [named.step for named in seen.steps]
        # Steps that restart in each epoch are counted through.
        falls = any(after < before for before, after in pairwise(numbers))
        has_epochs = len({named.epoch for named in seen.steps}) > 1
        self._span = max(numbers) + 1 if falls and has_epochs else 0
        places = self._places(seen)
        self.first, self.last = places[0], places[-1]
        forward = [b - a for a, b in pairwise(places) if b > a]
        self.stride = Counter(forward).most_common(1)[0][0] if forward else 1
        self._losses = self._losses_of(seen)
        self._noise = 0.0

    def learn_noise(self, seen: SeenStart) -> None:
        """Record how much the losses of another undisturbed start differ from this one's."""
        self._noise = max([self._noise, *(far for far, _, _, _ in self._differences(seen))])

    def result(
        self,
        fault: str,
        before: SeenStart,
        after: SeenStart,
        *,
        damaged: bool = False,
        intact_at: int | None = None,
    ) -> FaultResult:
        """Return the result of a fault from the start that it ended and the next one.

        ``damaged``: the newest checkpoint is half-written. A start that continues from it is past
        ``intact_at``, the step from which the start with an intact one continued, or, if that is None, past
        the middle between the last complete save and the end.
        """
        at = max(self._places(before), default=0)
        if not after.steps:
            outcome = NextStart.FINISHED if after.exit_code == 0 else NextStart.NOT_STARTED
            outcome = NextStart.STUCK if after.is_stuck else outcome
            result = FaultResult(fault, outcome, at, exit_code=after.exit_code, reason=after.reason)
        else:
            first = self._places(after)[0]
            resumed_at = first - self.stride
            result = FaultResult(fault, NextStart.RESUMED, at, max(0, resumed_at), max(0, at - resumed_at))
            if first <= self.first:
                result = replace(result, outcome=NextStart.FROM_SCRATCH, resumed_at=None, lost=at)
            elif damaged and resumed_at > self._newest_intact(before, at, intact_at):
                result = replace(result, outcome=NextStart.LOADED_DAMAGED)
            if after.is_stuck or after.exit_code:
                outcome = NextStart.STUCK if after.is_stuck else NextStart.NOT_STARTED
                result = replace(result, outcome=outcome, exit_code=after.exit_code, reason=after.reason)
            elif result.outcome is not NextStart.FROM_SCRATCH:
                result = self._with_losses(self._with_data(result, resumed_at, after), after)
        if before.saved_after_request is None or (before.saved_after_request and not before.killed):
            return result
        mistake = Mistake.SIGTERM_IGNORED if before.killed else Mistake.NOT_SAVED
        return replace(result, problems=(mistake, *result.problems))

    def _newest_intact(self, before: SeenStart, at: int, intact_at: int | None) -> float:
        if intact_at is not None:
            return intact_at - self.stride / 2
        complete = self._places(before)[before.saved_at[-1] - 1] if before.saved_at else self.first
        # With saves after each step, printed steps do not show which save was used.
        return (complete + at) / 2 if at - complete >= 2 * self.stride else at + self.stride

    def _with_losses(self, result: FaultResult, after: SeenStart) -> FaultResult:
        limit = max(_LOSS_TOLERANCE, _NOISE_FACTOR * self._noise)
        beyond = (difference for difference in self._differences(after) if difference[0] > limit)
        first = next(beyond, None)
        if first is None:
            return result
        _, place, one, other = first
        problems = (*result.problems, Mistake.LOSS_JUMPED)
        return replace(result, problems=problems, losses=(one, other), loss_step=place)

    def _with_data(self, result: FaultResult, resumed_at: int, after: SeenStart) -> FaultResult:
        """Compare the samples of the resumed steps with those of the steps before, over all ranks."""
        done, again = self.last - self.first + self.stride, self._places(after)[-1] - resumed_at
        kept = resumed_at - self.first + self.stride
        earlier, undisturbed, resumed = set[str](), list[str](), list[str]()
        for rank, batches in self._seen.data.items():
            per_step = len(batches) / done
            cut, end = round(kept * per_step), round((kept + again) * per_step)
            earlier |= {sample for batch in batches[:cut] for sample in batch}
            undisturbed += [sample for batch in batches[cut:end] for sample in batch]
            own = after.data.get(rank, ())
            # batches that are skipped up to the resumed step are read, but not trained on
            resumed += [sample for batch in own[-round(again * per_step) or len(own) :] for sample in batch]
        if not earlier or not undisturbed or not resumed:
            return result
        usual, share = (_share_in(earlier, samples) for samples in (undisturbed, resumed))
        result = replace(result, repeated_share=round(share, 3))
        if share - usual <= _REPEATED_SHARE:
            return result
        return replace(result, problems=(*result.problems, Mistake.DATA_REPEATED))

    def _places(self, seen: SeenStart) -> list[int]:
        return [named.epoch * self._span + named.step for named in seen.steps]

    def _losses_of(self, seen: SeenStart) -> dict[int, float]:
        """Return the loss at each step, the mean if several ranks print theirs."""
        found: dict[int, list[float]] = {}
        for place, named in zip(self._places(seen), seen.steps, strict=True):
            if named.loss is not None:
                found.setdefault(place, []).append(named.loss)
        return {place: sum(losses) / len(losses) for place, losses in found.items()}

    def _differences(self, seen: SeenStart) -> list[tuple[float, int, float, float]]:
        """Return by how much the losses differ from this start's, relatively: how far, where, and both."""
        found = []
        for place, loss in self._losses_of(seen).items():
            own = self._losses.get(place)
            if own is not None:
                largest = max(abs(own), abs(loss), 1e-12)
                found.append((abs(own - loss) / largest, place, loss, own))
        return found


def _share_in(earlier: set[str], samples: Sequence[str]) -> float:
    return sum(sample in earlier for sample in samples) / len(samples)
