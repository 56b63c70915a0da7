"""How far one attempt has come on this node, as a table. Pure.

JOINING ── joined ──→ RUNNING ── ended ──→ ENDED ── concluded ──→ OVER
   │                │  │                │  │
   │                │  └─ closed ─→ RUNNING_ALONE ── ended ─┐
   └── withdrew ────┼──── lost ───→ RUNNING_LOST  ── ended ─┴→ OVER
"""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """The node waits for the others, runs its processes, waits for the job's outcome, or knows it.

    ALONE: node 0 has finished, and this node continues without it. LOST: node 0 is unreachable.
    """

    JOINING = "joining"
    RUNNING = "running"
    RUNNING_ALONE = "running alone"
    RUNNING_LOST = "running, node 0 lost"
    ENDED = "ended"
    OVER = "over"


class Happening(Enum):
    """What changes the phase of an attempt.

    JOINED: all nodes have joined. WITHDREW: this node was asked to stop before that. ENDED: its processes
    have ended or were never started. CLOSED, LOST: see Phase. CONCLUDED: the outcome of the job is known.
    """

    JOINED = "joined"
    WITHDREW = "withdrew"
    ENDED = "ended"
    CLOSED = "closed"
    LOST = "lost"
    CONCLUDED = "concluded"


_NEXT: dict[tuple[Phase, Happening], Phase] = {
    (Phase.JOINING, Happening.JOINED): Phase.RUNNING,
    (Phase.JOINING, Happening.WITHDREW): Phase.OVER,
    (Phase.RUNNING, Happening.ENDED): Phase.ENDED,
    (Phase.RUNNING, Happening.CLOSED): Phase.RUNNING_ALONE,
    (Phase.RUNNING, Happening.LOST): Phase.RUNNING_LOST,
    (Phase.RUNNING_ALONE, Happening.ENDED): Phase.OVER,
    (Phase.RUNNING_LOST, Happening.ENDED): Phase.OVER,
    (Phase.ENDED, Happening.CLOSED): Phase.OVER,
    (Phase.ENDED, Happening.LOST): Phase.OVER,
    (Phase.ENDED, Happening.CONCLUDED): Phase.OVER,
}

RUNS = frozenset({Phase.RUNNING, Phase.RUNNING_ALONE, Phase.RUNNING_LOST})
"""The phases in which the node's processes run or are about to."""


def after(phase: Phase, happening: Happening) -> Phase:
    """Return the next phase. A happening that comes too early or too late changes nothing."""
    return _NEXT.get((phase, happening), phase)
