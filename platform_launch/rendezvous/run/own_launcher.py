"""What the helper process knows of its own launcher: that it lives, and whether its training moves."""

from __future__ import annotations

import time

from platform_launch.rendezvous.liveness import SilenceClock
from platform_launch.rendezvous.run.launcher import LauncherAlive

# Launchers give a sign of life each second, and are looked at as often as progress is told.
_LONGEST_PAUSE_S = 4.0


class OwnLauncher:
    """The launcher of this node. ``excerpt`` is what its training said last, kept up to date from outside."""

    def __init__(self) -> None:
        self._alive = (LauncherAlive(), time.monotonic())
        self._heard_at = 0.0
        self._silence = SilenceClock(time.monotonic(), _LONGEST_PAUSE_S)
        self.excerpt: tuple[str, ...] = ()

    def receive(self, alive: LauncherAlive) -> None:
        """Take a sign of life, from any thread."""
        self._alive = (alive, time.monotonic())

    def observe(self, now: float) -> float:
        """Return for how long the launcher has given no sign of life."""
        _, heard_at = self._alive
        if heard_at != self._heard_at:
            self._heard_at = heard_at
            self._silence.heard(now)
        return self._silence.observe(now)

    @property
    def silent_s(self) -> float:
        """For how long it has given no sign of life, as of the last look."""
        return self._silence.silent_s

    @property
    def still_s(self) -> float | None:
        """For how long nothing has moved in the training of this node; None where that is not known."""
        alive, at = self._alive
        return None if alive.still_s is None else alive.still_s + time.monotonic() - at
