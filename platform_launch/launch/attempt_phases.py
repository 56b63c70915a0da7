"""How far one attempt has come on this node, as a table. Pure.

MEETING ── met ──→ RUNNING ── ended ──→ ENDED ── settled ──→ OVER
   │                │  │                │  │
   │                │  └─ closed ─→ RUNNING_ALONE ── ended ─┐
   └── withdrew ────┼──── lost ───→ RUNNING_LOST  ── ended ─┴→ OVER
"""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """The node waits for the others; its processes run; they have ended and the job's outcome is awaited; it
    is known.

    ALONE: node 0 has finished, and this node goes on without it. LOST: node 0 cannot be reached any more.
    """

    MEETING = "meeting"
    RUNNING = "running"
    RUNNING_ALONE = "running alone"
    RUNNING_LOST = "running, node 0 lost"
    ENDED = "ended"
    OVER = "over"


class Happening(Enum):
    """What moves an attempt on.

    MET: all nodes are there. WITHDREW: this node was asked to end before that. ENDED: its processes have
    ended, or were never started. CLOSED, LOST: see Phase. SETTLED: the outcome of the job is known.
    """

    MET = "met"
    WITHDREW = "withdrew"
    ENDED = "ended"
    CLOSED = "closed"
    LOST = "lost"
    SETTLED = "settled"


_NEXT: dict[tuple[Phase, Happening], Phase] = {
    (Phase.MEETING, Happening.MET): Phase.RUNNING,
    (Phase.MEETING, Happening.WITHDREW): Phase.OVER,
    (Phase.RUNNING, Happening.ENDED): Phase.ENDED,
    (Phase.RUNNING, Happening.CLOSED): Phase.RUNNING_ALONE,
    (Phase.RUNNING, Happening.LOST): Phase.RUNNING_LOST,
    (Phase.RUNNING_ALONE, Happening.ENDED): Phase.OVER,
    (Phase.RUNNING_LOST, Happening.ENDED): Phase.OVER,
    (Phase.ENDED, Happening.CLOSED): Phase.OVER,
    (Phase.ENDED, Happening.LOST): Phase.OVER,
    (Phase.ENDED, Happening.SETTLED): Phase.OVER,
}

RUNS = frozenset({Phase.RUNNING, Phase.RUNNING_ALONE, Phase.RUNNING_LOST})
"""In these, the node's processes run or are about to."""


def after(phase: Phase, happening: Happening) -> Phase:
    """Return the phase that follows. What comes too early or too late changes nothing."""
    return _NEXT.get((phase, happening), phase)
