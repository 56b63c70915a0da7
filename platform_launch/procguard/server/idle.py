"""Reports running groups that hardly use their GPUs, and stops them if their settings ask for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from platform_launch.procguard.api.shapes.groups import GroupPhase
from platform_launch.procguard.core.control import SERVER, Control
from platform_launch.sentences import sentence


class IdleWatch:
    """Checks the GPU use of each running group, in percent, whenever it was measured."""

    def __init__(self, control: Control, clock: Callable[[], float] = time.monotonic) -> None:
        self._control = control
        self._clock = clock
        self._since: dict[str, tuple[int, float]] = {}
        self._reported: set[tuple[str, int]] = set()

    def check(self, use: Mapping[str, float | None]) -> None:
        """Report the groups that have used too little for too long. Raises Unavailable."""
        now = self._clock()
        for group in self._control.queries.groups():
            settings, run = group.settings, (group.name, group.run_number)
            percent = use.get(group.name)
            busy = percent is None or percent >= settings.idle_percent  # unknown use is not idle
            if group.phase is not GroupPhase.RUNNING or busy or not settings.idle_minutes:
                self._since.pop(group.name, None)
                continue
            known, since = self._since.setdefault(group.name, (group.run_number, now))
            if known != group.run_number:
                self._since[group.name] = (group.run_number, now)
            elif now - since >= 60 * settings.idle_minutes and run not in self._reported:
                self._reported.add(run)
                detail = sentence(
                    "idle-gpus",
                    percent=f"{settings.idle_percent:g}",
                    minutes=f"{settings.idle_minutes:g}",
                )
                self._control.record(SERVER, "idle", group.name, detail)
                if settings.idle_stop:
                    self._control.stop(group.name, SERVER)
