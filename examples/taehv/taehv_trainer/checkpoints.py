"""Checkpoints that are whole or not there: written beside, renamed into place, then named by ``latest``."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from taehv_trainer.errors import TrainingError

_PREFIX = "checkpoint-"
_UNFINISHED = "."  # leading character of names that are not (or no longer) checkpoints
_PROGRESS = "progress.json"


@dataclass(frozen=True)
class Progress:
    """What a checkpoint says of itself, besides weights, optimizer and random states."""

    step: int
    reads_seen: int  # by all processes
    n_processes: int


class Checkpoints:
    """The checkpoints under one folder. All processes call ``save``; those that finish act on the folder.

    ``finishes`` is true for one process a disk: the main one, or the first of each node if nodes share none.
    ``wait`` returns when all processes have called it.
    """

    def __init__(self, folder: Path, limit: int, *, finishes: bool, wait: Callable[[], object]) -> None:
        self._folder = folder
        self._limit = limit
        self._finishes = finishes
        self._wait = wait

    def save(self, progress: Progress, write: Callable[[Path], object]) -> Path:
        """Let ``write`` fill a folder, then make it the latest checkpoint and delete those over the limit.

        A process that is killed at any moment leaves ``latest`` naming a whole checkpoint.
        """
        final = self._folder / f"{_PREFIX}{progress.step:08d}"
        unfinished = self._folder / f"{_UNFINISHED}{final.name}"
        if self._finishes:
            self._remove_unfinished()
            unfinished.mkdir(parents=True)
        self._wait()
        write(unfinished)
        self._wait()
        if self._finishes:
            (unfinished / _PROGRESS).write_text(json.dumps(asdict(progress)), encoding="utf-8")
            _flush(unfinished)
            if final.exists():  # the same step once more, after a resume from an earlier one
                self._discard(final)
            unfinished.rename(final)
            self._point_latest_at(final)
            for old in self.names()[: -self._limit]:
                self._discard(self._folder / old)
        self._wait()
        return final

    def names(self) -> list[str]:
        """Return the names of whole checkpoints, oldest first."""
        return sorted(path.name for path in self._folder.glob(f"{_PREFIX}*") if path.is_dir())

    def find(self, wanted: str) -> Path | None:
        """Return the checkpoint meant by ``latest``, ``none`` or a path; None to start anew.

        Raises TrainingError when a checkpoint that was named is not there.
        """
        if wanted == "none":
            return None
        if wanted != "latest":
            path = Path(wanted)
        else:
            try:
                path = self._folder / (self._folder / "latest").read_text(encoding="utf-8").strip()
            except FileNotFoundError:
                return None
        if not (path / _PROGRESS).is_file():
            raise TrainingError(f"{path} is no checkpoint", "check --resume-from-checkpoint, or give 'none'")
        return path

    def _point_latest_at(self, checkpoint: Path) -> None:
        unfinished = self._folder / f"{_UNFINISHED}latest"
        unfinished.write_text(checkpoint.name + "\n", encoding="utf-8")
        _flush(self._folder)
        unfinished.replace(self._folder / "latest")

    def _discard(self, checkpoint: Path) -> None:
        condemned = self._folder / f"{_UNFINISHED}deleted-{checkpoint.name}"
        checkpoint.rename(condemned)
        shutil.rmtree(condemned)

    def _remove_unfinished(self) -> None:
        for path in self._folder.glob(f"{_UNFINISHED}*{_PREFIX}*"):
            shutil.rmtree(path)


def read_progress(checkpoint: Path, n_processes: int) -> Progress:
    """Return where a checkpoint was written. Raises TrainingError when it cannot be resumed by this job."""
    try:
        progress = Progress(**json.loads((checkpoint / _PROGRESS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise TrainingError(f"{checkpoint} is no checkpoint: {error}") from error
    if progress.n_processes != n_processes:
        raise TrainingError(
            f"{checkpoint} is of a job with {progress.n_processes} processes, this job has {n_processes}: "
            "the optimizer's state is divided among them",
            "resume with as many, or start anew with --resume-from-checkpoint none and init_from its "
            "ema.safetensors",
        )
    return progress


def _flush(folder: Path) -> None:
    """Force a folder's files to the disk, so that the rename after it never overtakes them."""
    for path in [folder, *folder.rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
