"""Whether ranks run on the CPUs they were bound to: verified after the start, reported once if undone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event as Flag
from threading import Thread
from types import TracebackType

import psutil

from platform_launch.events import Event, event
from platform_launch.hardware import running
from platform_launch.hardware.numa import cpu_ranges

_INTERVAL_S = 5.0
_LAST_WAIT_S = 1.0


class BindingWatch:
    """Looks every few seconds while it is entered, until a rank was found elsewhere.

    ``ranks`` holds the CPUs of each local rank. ``note`` gets what only the log needs, ``tell`` what a person
    should see. A library may move a thread for a moment while it starts, so a rank counts as moved when it
    was found elsewhere twice in a row.
    """

    def __init__(
        self,
        ranks: Sequence[Sequence[int]],
        *,
        tell: Callable[[Event], None],
        note: Callable[[Event], None],
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self._wanted = [frozenset(cpus) for cpus in ranks]
        self._tell, self._note = tell, note
        self._interval_s = interval_s
        self._verified = False
        self._moved: dict[int, frozenset[int]] = {}
        self._over = Flag()
        self._thread = Thread(target=self._watch, name="binding-watch", daemon=True)

    def __enter__(self) -> BindingWatch:
        if self._wanted:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._wanted:
            self._thread.join(_LAST_WAIT_S)

    def look(self) -> bool:
        """Compare once; return whether a rank was reported to run elsewhere."""
        found = affinities()
        moved = {
            rank: cpus
            for rank, cpus in found.items()
            if rank < len(self._wanted) and not cpus <= self._wanted[rank]
        }
        again = {rank: cpus for rank, cpus in moved.items() if self._moved.get(rank) == cpus}
        self._moved = moved
        for rank, cpus in again.items():
            wanted = cpu_ranges(self._wanted[rank])
            self._tell(event("binding-undone", local_rank=rank, wanted=wanted, found=cpu_ranges(cpus)))
            return True
        if len(found) == len(self._wanted) and not moved and not self._verified:
            self._verified = True
            self._note(event("binding-verified", ranks=len(found)))
        return False

    def _watch(self) -> None:
        while not self._over.wait(self._interval_s):
            with suppress(OSError, psutil.Error):  # worth a line, never worth a job
                if self.look():
                    return


def affinities() -> dict[int, frozenset[int]]:
    """Return the CPUs of each local rank among this process's descendants, not those of its helpers."""
    found: dict[int, frozenset[int]] = {}
    ranks: dict[int, str | None] = {}
    for process in psutil.Process(os.getpid()).children(recursive=True):
        with suppress(OSError, psutil.Error):
            ranks[process.pid] = rank = running.variable(process.pid, "LOCAL_RANK")
            if rank is not None and rank.isdecimal() and ranks.get(process.ppid()) is None:
                found[int(rank)] = frozenset(os.sched_getaffinity(process.pid))
    return found
