"""When silence counts: of a node, of node 0, of a launcher. Pure, but for the clock that callers read.

The rendezvous does not use the network that the training uses. So silence alone is only reported; a run
is stopped for it only if the training makes no progress either. The limits are explained in
docs/decisions/0019-silence-and-progress.md.
"""

from __future__ import annotations

from enum import Enum

from platform_launch.text import Phrase

# After this long, a silence is reported, nobody waits for that node to read the outcome, and another launcher
# may take its rank.
SILENT_S = 12.0
# A connection that has been closed for this long was not just interrupted. If the job has made no progress
# for GONE_STILL_S either, the run is stopped.
GONE_S = 2.0
GONE_STILL_S = 5.0
# A connection that broke without being closed may need several tries to resume: the route may be cut.
BROKEN_S = 8.0


def silent_after_s(node_timeout_s: float) -> float:
    """Return after how many seconds a node counts as silent, although nothing is stopped for that."""
    return min(SILENT_S, node_timeout_s)


def is_lost(silent_s: float, still_s: float | None, limit_s: float) -> bool:
    """Return whether the run must stop: silent and without progress for ``limit_s``.

    ``still_s`` is how long the job has made no progress, None if unknown.
    """
    return silent_s >= limit_s and (still_s is None or still_s >= limit_s)


def is_closed(
    closed_s: float, still_s: float | None, ended_s: float, limit_s: float, after_s: float = GONE_S
) -> bool:
    """Return whether the run must stop because a launcher closed its connection.

    A live launcher resumes within ``after_s``; ``closed_s`` is how long it has not. If the job's processes
    make progress, the run continues: a network may close connections. But no network closes them in an
    orderly way for long: ``ended_s`` is how long that has lasted, and ``limit_s`` the maximum.
    """
    return ended_s >= limit_s or (closed_s >= after_s and (still_s is None or still_s >= GONE_STILL_S))


class SilenceNews(Enum):
    """What to report about a silence."""

    SILENT = "silent"
    RESPONDS_AGAIN = Phrase("responds again")


class SilenceReporter:
    """Decides when to report a silence: when it begins, each time it doubles, and when it ends."""

    def __init__(self, after_s: float) -> None:
        self._after_s = self._next_s = after_s

    def news(self, silent_s: float) -> SilenceNews | None:
        """Return what to report about a silence of this length."""
        if silent_s >= self._next_s:
            self._next_s = 2 * silent_s
            return SilenceNews.SILENT
        if silent_s < self._after_s < self._next_s:
            self._next_s = self._after_s
            return SilenceNews.RESPONDS_AGAIN
        return None


def in_view_of(still_s: float | None, limit_s: float) -> str:
    """Describe the consequence of a silence, given how long the job has made no progress."""
    if still_s is None:
        return Phrase(
            "it is unknown whether the job continues; all nodes stop after {limit:.0f} s of silence",
            limit=limit_s,
        )
    if still_s < limit_s / 2:
        return Phrase("the job continues")
    return Phrase(
        "no progress for {still:.0f} s; all nodes stop after {limit:.0f} s of silence without progress",
        still=still_s,
        limit=limit_s,
    )
