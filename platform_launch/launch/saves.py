"""The checkpoints of an attempt: a warning if a save exceeds the grace period, a report after a stop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from platform_launch.events import Event, event
from platform_launch.launch.training_command import TrainingCommand
from platform_launch.supervise import Outcome
from platform_launch.text import seconds
from platform_launch.values import dataclass

if TYPE_CHECKING:
    from platform_launch.observe.checkpoints import Checkpoint, CheckpointWatch, StopReport

# A hanging file system must not keep the launch from ending.
_REPORT_S = 5.0
# The rest of a step and the exit must also fit between SIGTERM and SIGKILL.
_MARGIN = 1.5


@dataclass(frozen=True)
class Saves:
    """How long the last save took, and whether the stop ``signal``, if any, led to a save."""

    last_s: float | None = None
    signal: str = ""
    report: StopReport | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the form for the launch record."""
        return {
            "last_save_s": self.last_s,
            "checkpoint_after_stop": asdict(self.report) if self.report is not None else None,
        }

    def as_event(self, *, leads: bool) -> Event | None:
        """Return the event about the save after a stop. Only the leading node reports a missing one."""
        report = self.report
        if report is None or not self.signal or not (leads or report.path):
            return None
        if report.path is None:
            return event("checkpoint-missing", signal=self.signal)
        if report.unfinished:
            name = "checkpoint-unfinished"
        else:
            name = "checkpoint-saved" if report.saved else "checkpoint-not-saved"
        age = seconds(report.age_s or 0.0)
        return event(
            name, signal=self.signal, path=report.path, step=report.step, age_s=report.age_s, age=age
        )


class SaveWatch:
    """Watches the checkpoints of an attempt; ``known`` is what it has found."""

    def __init__(self, training: TrainingCommand, report_event: Callable[[Event], None]) -> None:
        self.known = Saves()
        self._training = training
        self._report_event = report_event
        self._warned = False
        self._watch: CheckpointWatch | None = None

    def start(self, pid: int) -> None:
        """Start watching the command with this process id. Raises RuntimeError if no thread can start."""
        # Here: the processes need not wait for it.
        from platform_launch.observe import processes
        from platform_launch.observe.checkpoints import CheckpointWatch, folders_named
        from platform_launch.observe.workers import find_hooked

        command, hangs = self._training.command, self._training.hangs
        folder = hangs.folder if hangs is not None else None

        def ranks() -> list[int]:
            hooked = find_hooked(folder) if folder is not None else []
            return [one.pid for one in hooked if one.rank is not None] or [pid, *processes.children(pid)]

        def folders() -> list[Path]:
            try:
                folder = (command.cwd or Path()).resolve()
            except OSError:  # it was removed
                return []
            return folders_named(command.argv, folder)

        watch = CheckpointWatch(ranks, folders, self._on_save)
        watch.start()
        self._watch = watch

    def request(self) -> None:
        """Record that the job is about to be stopped or warned."""
        if self._watch is not None:
            self._watch.request()

    def end(self, outcome: Outcome, signal: str) -> None:
        """Return whether the stop led to a save, if ``signal`` requested one."""
        if self._watch is None:
            return
        if outcome.stopped_by is None or not signal:
            self._watch.stop()
            return
        report = self._watch.report(killed=bool(outcome.killed), limit_s=_REPORT_S)
        self.known = replace(self.known, signal=signal, report=report)

    def newest_written(self) -> Checkpoint | None:
        """Return the newest checkpoint that this attempt wrote, None if none is known."""
        return self._watch.newest_written(_REPORT_S) if self._watch is not None else None

    def _on_save(self, took_s: float) -> None:
        self.known = replace(self.known, last_s=round(took_s, 1))
        grace_s = self._training.grace_s
        if took_s > grace_s and not self._warned:
            self._warned = True
            self._report_event(
                event(
                    "save-exceeds-grace",
                    took_s=round(took_s),
                    grace_s=round(grace_s),
                    took=seconds(took_s),
                    grace=seconds(grace_s),
                    wanted=10 * math.ceil(_MARGIN * took_s / 10),
                )
            )
