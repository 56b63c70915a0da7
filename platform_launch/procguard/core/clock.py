"""The server's time: since when it receives heartbeats, and since when each group is in its phase."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from platform_launch.procguard.api.shapes.groups import GroupPhase
from platform_launch.procguard.core.group import Group


def utc_now() -> datetime:
    """Return the wall-clock time, for display."""
    return datetime.now(timezone.utc)


@dataclass(frozen=True)
class Moment:
    """A time of the monotonic clock, and since when the server had been listening then."""

    clock_s: float
    listening_since: float

    def silent_s(self, seen_at: float | None) -> float:
        """Return the time since a heartbeat, counted at most from when the server began to listen."""
        return self.clock_s - max(seen_at or self.listening_since, self.listening_since)


class ServerClock:
    """``clock`` is monotonic and used for every decision; ``now`` is only for display.

    On the monotonic clock, a group enters its phase when this server first sees it there.
    """

    now = staticmethod(utc_now)

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock_s = clock
        self.listening_since = clock()
        self._phases: dict[str, tuple[GroupPhase, datetime, float]] = {}

    def moment(self) -> Moment:
        """Return the current moment."""
        return Moment(self.clock_s(), self.listening_since)

    def in_phase_s(self, group: Group) -> float:
        """Return how long a group has been in its phase; 0 if :meth:`enter` has not seen it there."""
        known = self._phases.get(group.name)
        if known is None or known[:2] != (group.phase, group.phase_since):
            return 0.0
        return self.clock_s() - known[2]

    def enter(self, group: Group) -> None:
        """Record the phase of a group. Only writers call this: what others read may be outdated."""
        known = self._phases.get(group.name)
        if known is None or known[:2] != (group.phase, group.phase_since):
            self._phases[group.name] = (group.phase, group.phase_since, self.clock_s())

    def forget(self, group: str) -> None:
        """Forget a group."""
        self._phases.pop(group, None)
