"""The server's time: since when it hears agents, and since when each group is in its phase."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from platform_launch.procguard.api.shapes.groups import GroupPhase
from platform_launch.procguard.core.group import Group


def utc_now() -> datetime:
    """Return the time to show."""
    return datetime.now(timezone.utc)


NEVER = float("-inf")


@dataclass(frozen=True)
class Moment:
    """A moment of the monotonic clock, and since when the server had been listening then."""

    clock_s: float
    listening_since: float

    def silent_s(self, seen_at: float | None) -> float:
        """Return how long ago something was heard, at most since the server began to listen."""
        return self.clock_s - max(seen_at or self.listening_since, self.listening_since)

    def late(self, limit_s: float) -> float:
        """Return before when whoever was heard last has been silent for longer than ``limit_s``."""
        before = self.clock_s - limit_s
        return before if self.listening_since < before else NEVER


class ServerClock:
    """Two clocks: ``clock`` is monotonic and decides everything, ``now`` is only shown.

    When groups entered their phases is known on the monotonic clock only from when this server first saw it.
    """

    now = staticmethod(utc_now)

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock_s = clock
        self.listening_since = clock()
        self._phases: dict[str, tuple[GroupPhase, datetime, float]] = {}

    def moment(self) -> Moment:
        """Return this moment."""
        return Moment(self.clock_s(), self.listening_since)

    def in_phase_s(self, group: Group) -> float:
        """Return for how long a group is in its phase; 0 where :meth:`enter` has not seen it there."""
        known = self._phases.get(group.name)
        if known is None or known[:2] != (group.phase, group.phase_since):
            return 0.0
        return self.clock_s() - known[2]

    def enter(self, group: Group) -> None:
        """Note the phase that a group is in. Only writers call this: what others read may be outdated."""
        known = self._phases.get(group.name)
        if known is None or known[:2] != (group.phase, group.phase_since):
            self._phases[group.name] = (group.phase, group.phase_since, self.clock_s())

    def forget(self, group: str) -> None:
        """Forget a group."""
        self._phases.pop(group, None)
