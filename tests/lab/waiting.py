"""Waiting for what must come. No test says how long work takes: the limit only ends a wait in vain."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

# A dear question is asked less often: this many times what it cost remains for everything else.
_OF_ITS_COST = 9
_LONGEST_PAUSE_S = 2.0
# Far beyond what a machine needs whose every core is busy with something else.
LIMIT_S = 600.0

Answer = TypeVar("Answer")


def until(
    answer: Callable[[], Answer], what: str | Callable[[], str] = "the condition", *, pause_s: float = 0.02
) -> Answer:
    """Ask until the answer is true and return it; fail with ``what`` when that never comes."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        before_s = _spent_s()
        if found := answer():
            return found
        cost_s = _spent_s() - before_s
        assert time.monotonic() < deadline, f"waited in vain: {what if isinstance(what, str) else what()}"
        time.sleep(max(pause_s, min(_OF_ITS_COST * cost_s, _LONGEST_PAUSE_S)))


def at_once(*scenarios: Callable[[], None]) -> None:
    """Go through scenarios that wait more than they compute, each in a thread; fail if one of them does."""
    with ThreadPoolExecutor(len(scenarios)) as threads:
        for running in [threads.submit(scenario) for scenario in scenarios]:
            running.result()


def _spent_s() -> float:
    """Return the processor time of this process and of those that it has waited for."""
    return time.process_time() + sum(os.times()[2:4])
