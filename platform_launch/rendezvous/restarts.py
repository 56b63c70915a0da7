"""Whether a failed run is worth starting again."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from platform_launch.observe.checkpoints import Checkpoint
from platform_launch.text import Phrase
from platform_launch.values import dataclass

# If the output names no steps, only this is known: the job worked for a while.
_LONG_ENOUGH_S = 600.0


class NotAgainKind(str, Enum):
    """Why a run is not restarted."""

    NOT_ASKED_FOR = "not_asked_for"
    USED_UP = "used_up"
    NO_PROGRESS = "no_progress"
    HANG = "hang"
    JOB = "job"
    BAD_NODE = "bad_node"


@dataclass(frozen=True)
class NotAgain:
    """A run is not restarted. ``step`` is the highest step in its output, None if there is none."""

    kind: NotAgainKind
    max_restarts: int = 0
    step: int | None = None


@dataclass(frozen=True)
class FailedRun:
    """A failed run: the highest step in its output (None: it names none), and its duration.

    ``checkpoint`` is the newest one that it wrote, None if it is not known to have written any.
    """

    step: int | None
    duration_s: float
    checkpoint: Checkpoint | None = None


def why_not_again(failed: Sequence[FailedRun], restarts_used: int, max_restarts: int) -> NotAgain | None:
    """Return why a run is not restarted after the last of ``failed``, None if it is.

    ``failed`` holds the failed runs that this launcher knows, in order; ``restarts_used`` may be higher,
    since a node that replaces another has seen fewer.
    """
    if not max_restarts:
        return NotAgain(NotAgainKind.NOT_ASKED_FOR)
    if restarts_used >= max_restarts:
        return NotAgain(NotAgainKind.USED_UP, max_restarts)
    # Output that names no steps proves nothing: unknown progress is not lack of progress.
    names_steps = any(run.step is not None for run in failed)
    if (
        names_steps
        and len(failed) >= 3
        and not any(
            _progressed(earlier, later) for earlier, later in zip(failed[-3:-1], failed[-2:], strict=True)
        )
    ):
        return NotAgain(NotAgainKind.NO_PROGRESS, max_restarts, failed[-1].step)
    return None


def is_young(failed: FailedRun) -> bool:
    """Return whether a run failed before it made progress, so that the cause was there from the start."""
    return failed.step is None and failed.duration_s < _LONG_ENOUGH_S


def describe_not_again(reason: NotAgain) -> Phrase:
    """Describe why a run is not restarted."""
    match reason.kind:
        case NotAgainKind.NOT_ASKED_FOR:
            return Phrase("--max-restarts is 0")
        case NotAgainKind.HANG:
            return Phrase("--on-hang is stop")
        case NotAgainKind.JOB:
            return Phrase("fix the job first: the same would happen again")
        case NotAgainKind.BAD_NODE:
            return Phrase("a node is bad, and no other node can replace it")
        case NotAgainKind.USED_UP:
            return Phrase("all {restarts} restarts are used", restarts=reason.max_restarts)
        case NotAgainKind.NO_PROGRESS:
            step = reason.step
            where = "" if step is None else Phrase(": each ended at step {step} or before", step=step)
            return Phrase("the last two restarts made no progress{where}", where=where)


def _progressed(earlier: FailedRun, later: FailedRun) -> bool:
    if later.checkpoint is not None:
        before = earlier.checkpoint.step if earlier.checkpoint is not None else None
        # A job that starts from scratch each time writes the same checkpoints again.
        if before is None or later.checkpoint.step is None or later.checkpoint.step > before:
            return True
    if later.step is not None:
        return earlier.step is None or later.step > earlier.step
    return later.duration_s >= _LONG_ENOUGH_S
