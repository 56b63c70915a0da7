"""A fault as a value: what is done to a job, and what a launcher owes its users then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.faults.stage import Stage


class Owed(Enum):
    """What should become of the job."""

    SURVIVES = "goes on and finishes"
    ENDS = "ends on all nodes"
    STOPS = "ends in good order"
    REFUSED = "is refused"


def nothing(_stage: Stage) -> None:
    """Do nothing from outside: the training does it."""


@dataclass(frozen=True)
class Fault:
    """``script`` is what the training does (``training.py``), ``inject`` what is done to it once it trains.

    ``node`` is the one that every node must name, None where none is to blame. ``code`` is what all nodes
    that were not killed return, None where any code but 0 is right. ``nproc`` above 1: ranks that exchange
    numbers (gloo). ``prepare`` comes before the start and may change it; ``options`` are platform-launch's
    own flags.
    ``silenced`` are nodes that cannot speak: they were killed, or never came. ``starts``: it is done once
    all nodes train, not before. ``own``: only platform-launch has what it is about.
    """

    name: str
    what: str
    owed: Owed
    script: tuple[str, ...] = ("none",)
    inject: Callable[[Stage], None] = nothing
    prepare: Callable[[Stage], None] = nothing
    node: int | None = None
    code: int | None = None
    nproc: int = 1
    nnodes: int = 2
    options: tuple[str, ...] = ()
    silenced: frozenset[int] = frozenset()
    starts: bool = True
    own: bool = False
