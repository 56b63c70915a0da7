"""Whether a failed run is worth starting again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

NOT_ASKED_FOR = "no restart was asked for"
# Of a training whose output names no steps, only this much is known: it worked for a while.
_LONG_ENOUGH_S = 600.0
_STEP = re.compile(r"\b(?:global[ _]?)?steps?['\"]?[ :=#]{1,3}(\d{1,12})\b", re.IGNORECASE)


@dataclass(frozen=True)
class Run:
    """A run that failed: the highest step its output named (None: it names none), and how long it took."""

    step: int | None
    duration_s: float


def highest_step(log: str) -> int | None:
    """Return the highest step an output names (``Step 120/1000``, ``global_step=120``)."""
    steps = [int(match) for match in _STEP.findall(log)]
    return max(steps) if steps else None


def why_not_again(failed: Sequence[Run], restarts_used: int, max_restarts: int) -> str:
    """Return why a run is not started again after the last one of ``failed``, empty when it is.

    ``failed`` holds the runs this launcher has seen fail, in order; ``restarts_used`` may count more of them,
    since a node that was replaced has seen fewer.
    """
    if restarts_used >= max_restarts:
        return f"all {max_restarts} restarts are used" if max_restarts else NOT_ASKED_FOR
    if len(failed) >= 3 and not any(
        _progressed(earlier, later) for earlier, later in zip(failed[-3:-1], failed[-2:], strict=True)
    ):
        where = "" if failed[-1].step is None else f": each ended at step {failed[-1].step} or before"
        return f"the last two restarts brought the training no further{where}"
    return ""


def _progressed(earlier: Run, later: Run) -> bool:
    if later.step is not None:
        return earlier.step is None or later.step > earlier.step
    return later.duration_s >= _LONG_ENOUGH_S
