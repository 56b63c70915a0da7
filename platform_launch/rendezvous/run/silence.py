"""When silence counts: of a node, of node 0, of a launcher. Pure, but for the clock that callers read.

The rendezvous is not the network that the training uses. So silence alone is told and waited out; a run ends
for it only when the training makes no progress either. docs/decisions/0019-silence-and-progress.md has the
reasons for the limits.
"""

from __future__ import annotations

from enum import Enum

from platform_launch.text import Phrase

# After this long a silence is worth a line, nobody waits for that node to read how the run ended, and another
# launcher may come for its rank.
SILENT_S = 12.0
# After this long a closed connection was not just interrupted, and with nothing moving for so long the run
# ends.
GONE_S = 2.0
GONE_STILL_S = 5.0
# A connection that broke, and was not closed, may be resumed only after some tries: the way was cut, perhaps.
BROKEN_S = 8.0


def silent_after_s(node_timeout_s: float) -> float:
    """Return after how many seconds somebody counts as silent, although nothing ends for that."""
    return min(SILENT_S, node_timeout_s)


def is_lost(silent_s: float, still_s: float | None, limit_s: float) -> bool:
    """Tell whether a silence ends the run: nothing was heard for ``limit_s``, and nothing moved either.

    ``still_s`` is for how long nothing has moved in the training, None where nobody can tell.
    """
    return silent_s >= limit_s and (still_s is None or still_s >= limit_s)


def is_gone(
    gone_s: float, still_s: float | None, ended_s: float, limit_s: float, after_s: float = GONE_S
) -> bool:
    """Tell whether a launcher whose connection was closed ends the run.

    One that lives resumes within ``after_s``; ``gone_s`` is for how long it has not. If the job's processes
    still move, the run goes on: it may be the network that closes connections. But a network does not close
    them in order and for long: ``ended_s`` is for how long that has been so, and ``limit_s`` the most.
    """
    return ended_s >= limit_s or (gone_s >= after_s and (still_s is None or still_s >= GONE_STILL_S))


class SilenceNews(Enum):
    """What is to be said of a silence."""

    SILENT = "silent"
    HEARD_AGAIN = Phrase("heard again")


class SilenceReporter:
    """What to say of one silence: that it is there, again when it has doubled, and once that it is over."""

    def __init__(self, after_s: float) -> None:
        self._after_s = self._next_s = after_s

    def news(self, silent_s: float) -> SilenceNews | None:
        """Return what is new, of a silence that is this long by now."""
        if silent_s >= self._next_s:
            self._next_s = 2 * silent_s
            return SilenceNews.SILENT
        if silent_s < self._after_s < self._next_s:
            self._next_s = self._after_s
            return SilenceNews.HEARD_AGAIN
        return None


def in_view_of(still_s: float | None, limit_s: float) -> str:
    """Say what follows from a silence, given for how long nothing has moved in the training."""
    if still_s is None:
        return Phrase(
            "whether the training goes on cannot be seen; all stop after {limit:.0f} s of silence",
            limit=limit_s,
        )
    if still_s < limit_s / 2:
        return Phrase("the training goes on")
    return Phrase(
        "nothing has moved in the training for {still:.0f} s; all stop when both last for {limit:.0f} s",
        still=still_s,
        limit=limit_s,
    )
