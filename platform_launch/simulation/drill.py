"""The faults of a drill. Each takes two starts: one that the fault ends, and the next one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from platform_launch.errors import InputError
from platform_launch.observe.checkpoints import checkpoint_of, listing
from platform_launch.simulation.drill_judge import Baseline, FaultResult, SeenStart
from platform_launch.simulation.drill_start import DrilledJob, DrillStart
from platform_launch.text import Phrase

# Placeholder for the checkpoint folder among the script's arguments.
PLACEHOLDER = "{folder}"

# In the order in which they are tried.
FAULTS = {
    "kill": Phrase("a rank is killed (SIGKILL)"),
    "term": Phrase("SIGTERM to all nodes"),
    "save": Phrase("a rank is killed while it saves"),
    "disk": Phrase("the disk is full during a save"),
    "truncate": Phrase("a rank is killed, and the newest checkpoint is truncated"),
}
WITHOUT = Phrase("without a fault")
# A fault comes after this many checkpoints; a rank is killed this many printed steps later.
_SAVES = 2
_STEPS_PAST_SAVE = 2
# How many printed steps after a fault are compared with the start without a fault.
_COMPARED_STEPS = 10


class Drill:
    """Tries faults on a job. ``report(text)`` is called with progress messages. Main thread only; raises
    Interrupted.
    """

    def __init__(self, job: DrilledJob, report: Callable[[str], None]) -> None:
        self._job = job
        self._report = report
        self._kept = job.logs / "kept"

    def run_without_fault(self) -> SeenStart:
        """Start the job without a fault. It may hang; raises InputError if the drill cannot use it."""
        self._report(WITHOUT)
        self._clear()
        start = DrillStart(self._job, "none")
        start.record_data()
        seen = start.run(lambda start: start.is_late or start.has_steps_past(_SAVES, _COMPARED_STEPS))
        logs = Phrase("its logs: {folder}", folder=self._job.logs / "none")
        if seen.exit_code:
            reason = seen.reason or start.last_lines()
            raise InputError(
                Phrase(
                    "the job fails without a fault, exit code {code}: {reason}",
                    code=seen.exit_code,
                    reason=reason,
                ),
                Phrase("{logs}. It was started in {directory}", logs=logs, directory=self._job.directory),
            )
        if not seen.steps:
            raise InputError(
                Phrase("the job printed no step: expected lines such as: step 12 loss 0.31"), logs
            )
        if not seen.is_stuck and len(seen.saved_at) < _SAVES:
            raise InputError(
                Phrase(
                    "the job wrote {number} checkpoints to {folder} in {step} steps: expected {expected}",
                    number=len(seen.saved_at),
                    folder=self._job.work,
                    step=seen.steps[-1].step,
                    expected=_SAVES,
                ),
                Phrase(
                    "pass arguments that let it train longer or save more often, and {placeholder} as the "
                    "folder",
                    placeholder=PLACEHOLDER,
                ),
            )
        return seen

    def results(self, seen: SeenStart, faults: Sequence[str]) -> Iterator[FaultResult]:
        """Try the faults, and yield the results, compared with the start without a fault."""
        baseline, steps_per_save = Baseline(seen), seen.saved_at[1] - seen.saved_at[0]
        before, intact_at = SeenStart(), None
        for fault in FAULTS:
            if fault not in faults and not (fault == "kill" and "truncate" in faults):
                continue
            self._report(FAULTS[fault])
            self._clear()
            if fault == "truncate":
                shutil.copytree(self._kept, self._job.work, symlinks=True, dirs_exist_ok=True)
                _truncate_newest(self._job.work)
            else:
                before = self._start_before(fault, steps_per_save)
                baseline.learn_noise(before)
            if fault == "kill" and "truncate" in faults:
                shutil.copytree(self._job.work, self._kept, symlinks=True)
            start = DrillStart(self._job, f"{fault}-after")
            start.record_data()
            after = start.run(lambda start: len(start.steps) >= _COMPARED_STEPS)
            damaged = fault in ("save", "disk", "truncate")
            result = baseline.result(fault, before, after, damaged=damaged, intact_at=intact_at)
            intact_at = result.resumed_at if fault == "kill" else intact_at
            yield result

    def _start_before(self, fault: str, steps_per_save: int) -> SeenStart:
        """Start the job, and end it by a fault."""
        start = DrillStart(self._job, fault)
        if fault == "save":
            start.die_at_limit()
        injected: list[int] = []

        def act(start: DrillStart) -> bool:
            """Inject the fault once; a job that survives it is stopped after its next save."""
            if injected:
                return (
                    fault != "term" and len(start.steps) - injected[0] > 2 * steps_per_save + _COMPARED_STEPS
                )
            if fault in ("save", "disk"):
                if start.saves:
                    start.limit_files()
                    injected.append(len(start.steps))
            elif start.has_steps_past(_SAVES, _STEPS_PAST_SAVE):
                injected.append(len(start.steps))
                if fault == "kill":
                    start.kill_a_rank()
                else:
                    start.ask_to_stop()
            return False

        seen = start.run(act)
        if not injected:
            raise InputError(
                Phrase(
                    "the job ended before the fault, at step {step}, exit code {code}",
                    step=seen.steps[-1].step if seen.steps else 0,
                    code=seen.exit_code,
                ),
                Phrase(
                    "pass arguments that let it train longer; its logs: {folder}",
                    folder=self._job.logs / fault,
                ),
            )
        return seen

    def _clear(self) -> None:
        """Empty the checkpoint folder."""
        shutil.rmtree(self._job.work, ignore_errors=True)
        self._job.work.mkdir(parents=True)


def _truncate_newest(folder: Path) -> None:
    """Cut the largest file of the newest checkpoint in half."""
    files = listing([folder])
    newest = max(files, key=lambda path: files[path])
    checkpoint = checkpoint_of(newest)
    own = [path for path in files if checkpoint is not None and checkpoint_of(path) == checkpoint]
    largest = max(own, key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
