"""Checkpoints on one disk: complete or absent, checked before use, pruned in the order of writing."""

from __future__ import annotations

import errno
import json
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from taehv_trainer.errors import TrainingError

_PREFIX = "checkpoint-"
_HIDDEN = "."  # first character of names that are not (or no longer) checkpoints
_PROGRESS = "progress.json"
_CHUNK_BYTES = 2**22


@dataclass(frozen=True)
class Progress:
    """How far a run was when a checkpoint was written. ``samples_seen`` counts clips over all processes."""

    step: int
    samples_seen: int
    n_processes: int
    run_id: str = ""
    config: dict[str, Any] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints in one folder. One process per disk writes them; every process may read them."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self._limit = limit

    def write(self, progress: Progress, files: Mapping[str, Mapping[str, Tensor]]) -> Path:
        """Write one safetensors file per entry of ``files``, then delete the oldest over the limit.

        A process that is killed at any moment leaves only complete checkpoints. ``latest`` is a link for
        people; it is never read. Raises TrainingError if the disk is full or fails.
        """
        final = self.folder / f"{_PREFIX}{progress.step:08d}"
        unfinished = self.folder / f"{_HIDDEN}{final.name}"
        needed = sum(t.nbytes for tensors in files.values() for t in tensors.values())
        try:
            self._remove_hidden()
            unfinished.mkdir(parents=True)
            _require_space(unfinished, needed)
            for name, tensors in files.items():
                (unfinished / name).write_bytes(safetensors.torch.save(dict(tensors)))
            self._write_progress(unfinished, progress)
            _flush(unfinished)
            if final.exists():  # the same step again, after a resume from an earlier one
                self._discard(final)
            unfinished.rename(final)
            self._link_latest(final)
            for old in self.names()[self._limit :]:
                self._discard(self.folder / old)
        except OSError as error:
            raise self._write_error(final, unfinished, needed, error) from error
        return final

    def names(self) -> list[str]:
        """Return the names of all checkpoints, last written first."""
        order = {
            path.name: _read_progress_file(path).get("serial", 0)
            for path in self.folder.glob(f"{_PREFIX}*")
            if path.is_dir()
        }
        return sorted(order, key=lambda name: (order[name], name), reverse=True)

    def _write_progress(self, unfinished: Path, progress: Progress) -> None:
        # Step numbers are not ages: a run that went back to an earlier step writes lower ones later.
        serials = [_read_progress_file(self.folder / name).get("serial", 0) for name in self.names()]
        record = asdict(progress) | {
            "serial": max(serials, default=0) + 1,
            "files": {path.name: _fingerprint(path) for path in sorted(unfinished.iterdir())},
        }
        (unfinished / _PROGRESS).write_text(json.dumps(record, indent=1), encoding="utf-8")

    def _write_error(self, final: Path, unfinished: Path, needed: int, error: OSError) -> TrainingError:
        written = sum(path.stat().st_size for path in unfinished.glob("*"))
        shutil.rmtree(unfinished, ignore_errors=True)
        free = shutil.disk_usage(next(p for p in (final, *final.parents) if p.exists())).free
        return TrainingError(
            f"{final} cannot be written: {error.strerror or error} ({written} of {needed} bytes written, "
            f"{free} bytes free)",
            "free some space or pass a smaller --checkpoints-total-limit, then start again with "
            "--resume-from-checkpoint latest: earlier checkpoints are intact",
        )

    def _link_latest(self, checkpoint: Path) -> None:
        unfinished = self.folder / f"{_HIDDEN}latest"
        unfinished.unlink(missing_ok=True)
        try:
            unfinished.symlink_to(checkpoint.name)
        except OSError:  # a file system without links
            return
        unfinished.replace(self.folder / "latest")

    def _discard(self, checkpoint: Path) -> None:
        condemned = self.folder / f"{_HIDDEN}deleted-{checkpoint.name}"
        checkpoint.rename(condemned)
        shutil.rmtree(condemned)

    def _remove_hidden(self) -> None:
        for path in self.folder.glob(f"{_HIDDEN}*{_PREFIX}*"):
            shutil.rmtree(path)


def damage(checkpoint: Path) -> str:
    """Return what is wrong with a checkpoint, or "" if its files are as they were written."""
    try:
        record = json.loads((checkpoint / _PROGRESS).read_text(encoding="utf-8"))
        expected = record["files"]
        read_progress(checkpoint)
        for name in expected:
            found = _fingerprint(checkpoint / name)
            if found["bytes"] != expected[name]["bytes"]:
                return f"{name} has {found['bytes']} of {expected[name]['bytes']} bytes"
            if found != expected[name]:
                return f"{name} has changed since it was written"
    except TrainingError as error:
        return error.message
    except (OSError, ValueError, TypeError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def read_progress(checkpoint: Path) -> Progress:
    """Return how far the run was. Raises TrainingError if this is not a checkpoint."""
    record = _read_progress_file(checkpoint)
    try:
        return Progress(**{name: record[name] for name in Progress.__dataclass_fields__})
    except KeyError as error:
        raise TrainingError(
            f"{checkpoint} is not a checkpoint: {_PROGRESS} is missing or incomplete",
            "check --resume-from-checkpoint",
        ) from error


def _read_progress_file(checkpoint: Path) -> dict[str, Any]:
    try:
        record = json.loads((checkpoint / _PROGRESS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _require_space(folder: Path, needed: int) -> None:
    if shutil.disk_usage(folder).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _fingerprint(file: Path) -> dict[str, int]:
    crc, size = 0, 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return {"bytes": size, "crc32": crc}


def _flush(folder: Path) -> None:
    """Force a folder's files to the disk, so that the rename after it never overtakes them."""
    for path in [folder, *folder.iterdir()]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
