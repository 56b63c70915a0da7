"""Waiting for what must come. No test says how long work takes: the limit only ends a wait in vain."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

# Far beyond what a machine needs whose every core is busy with something else.
LIMIT_S = 600.0

Answer = TypeVar("Answer")


def until(
    answer: Callable[[], Answer], what: str | Callable[[], str] = "waited in vain", *, pause_s: float = 0.02
) -> Answer:
    """Ask until the answer is true and return it; fail with ``what`` when that never comes."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := answer()):
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(pause_s)
    return found
