"""When silence counts: of a node, of node 0, of a launcher. Pure, but for the clock that callers read.

The rendezvous is not the network that the training uses. So silence alone is told and waited out; a run ends
for it only when the training makes no progress either. docs/decisions/0019-silence-and-progress.md has the
reasons for the limits.
"""

from __future__ import annotations

from enum import Enum

# After this long a silence is worth a line, nobody waits for that node to read how the run ended, and another
# launcher may come for its rank.
SILENT_S = 12.0


def silent_after_s(node_timeout_s: float) -> float:
    """Return after how many seconds somebody counts as silent, although nothing ends for that."""
    return min(SILENT_S, node_timeout_s)


def is_lost(silent_s: float, still_s: float | None, limit_s: float) -> bool:
    """Tell whether a silence ends the run: nothing was heard for ``limit_s``, and nothing moved either.

    ``still_s`` is for how long nothing has moved in the training, None where nobody can tell.
    """
    return silent_s >= limit_s and (still_s is None or still_s >= limit_s)


class SilenceNews(Enum):
    """What is to be said of a silence."""

    SILENT = "silent"
    HEARD_AGAIN = "heard again"


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
        return f"whether the training goes on cannot be seen; all stop after {limit_s:.0f} s of silence"
    if still_s < limit_s / 2:
        return "the training goes on"
    return (
        f"nothing has moved in the training for {still_s:.0f} s; all stop when both last for {limit_s:.0f} s"
    )
