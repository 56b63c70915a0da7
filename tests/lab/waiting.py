"""Waiting for what must come. No test says how long work takes: the limit only ends a wait in vain."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

# A dear question is asked less often: this many times what it cost remains for everything else.
_OF_ITS_COST = 9
# Far beyond what a machine needs whose every core is busy with something else.
LIMIT_S = 600.0

Answer = TypeVar("Answer")


def until(
    answer: Callable[[], Answer], what: str | Callable[[], str] = "waited in vain", *, pause_s: float = 0.02
) -> Answer:
    """Ask until the answer is true and return it; fail with ``what`` when that never comes."""
    deadline = time.monotonic() + LIMIT_S
    spent_s = _spent_s()
    while not (found := answer()):
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        before_s, spent_s = spent_s, _spent_s()
        time.sleep(max(pause_s, _OF_ITS_COST * (spent_s - before_s)))
    return found


def _spent_s() -> float:
    """Return the processor time of this process and of those that it has waited for."""
    return sum(os.times()[:4])
