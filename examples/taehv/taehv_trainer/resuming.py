"""Which checkpoint a run starts from: one that every node has, undamaged; all processes choose together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object

from taehv_trainer.checkpoints import Checkpoints, Progress, damage
from taehv_trainer.config import TrainConfig
from taehv_trainer.errors import TrainingError
from taehv_trainer.report import log_line
from taehv_trainer.session import raise_together

_MAY_DIFFER = ("output_dir", "resume_from_checkpoint")
# With another value, other frames are held out: some that are validated on now may have been trained on.
_SPLITS = ("data_root", "annotation_file", "holdout_fraction", "num_frames", "frame_stride")


def choose_checkpoint(checkpoints: Checkpoints, wanted: str, accelerator: Accelerator) -> Path | None:
    """Return the checkpoint meant by ``latest``, ``none`` or a path; None to start fresh.

    ``latest`` is the last one written that is undamaged on every node. Raises TrainingError, on every
    process, if there is no such checkpoint, or if a fresh start would mix two runs in one folder.
    """
    names = checkpoints.names()
    named = None if wanted in ("latest", "none") else Path(wanted)
    fresh = wanted == "none" or (named is not None and named.resolve().parent != checkpoints.folder.resolve())
    refusal = None
    if fresh and names:
        refusal = TrainingError(
            f"{checkpoints.folder} already holds checkpoints of a run (last written: {names[0]}), and "
            f"resume_from_checkpoint={wanted!r} starts another one",
            "pass another --output-dir, or --resume-from-checkpoint latest to go on with that run",
        )
    elif named is not None and (problem := _damage_seen_by(accelerator, named)):
        refusal = TrainingError(
            f"{named} is not a usable checkpoint: {problem}", "check --resume-from-checkpoint"
        )
    raise_together(refusal)
    return named if wanted != "latest" else _last_undamaged(checkpoints, names, accelerator)


def _last_undamaged(checkpoints: Checkpoints, names: list[str], accelerator: Accelerator) -> Path | None:
    lists: list[list[str]] = gather_object([names])
    if not any(lists):
        return None
    reason = "not every node has one of them"
    for name in lists[0]:
        if all(name in others for others in lists):
            path = checkpoints.folder / name
            problems = gather_object([_damage_seen_by(accelerator, path)])
            problem = next(filter(None, problems), "")
            if not problem:
                return path
            reason = f"{name}: {problem}"
            if accelerator.is_main_process:
                log_line("WARN", f"{path} is damaged: {problem}. Trying the one written before it")
    raise TrainingError(
        f"none of the checkpoints in {checkpoints.folder} can be resumed from: {reason}",
        "put output_dir on storage that all nodes share, restore a checkpoint, or pass another --output-dir "
        "to start fresh",
        on_all_processes=True,
    )


def _damage_seen_by(accelerator: Accelerator, checkpoint: Path) -> str:
    """Check the files once per node: all its processes see the same disk."""
    return damage(checkpoint) if accelerator.is_local_main_process else ""


def changes(progress: Progress, config: TrainConfig, n_processes: int) -> list[str]:
    """Describe what differs from the run that wrote the checkpoint; one line each."""
    now = asdict(config)
    different = {
        name: (value, now[name])
        for name, value in progress.config.items()
        if name in now and name not in _MAY_DIFFER and value != now[name]
    }
    lines = [
        f"changed since the checkpoint: {name} {old!r} -> {new!r}" for name, (old, new) in different.items()
    ]
    before, after = _global_batch(progress.config, progress.n_processes), _global_batch(now, n_processes)
    if before != after:
        lines.append(f"changed since the checkpoint: {before} -> {after} clips per step")
    if split := [name for name in _SPLITS if name in different]:
        lines.append(f"frames validated on now may have been trained on before ({', '.join(split)} changed)")
    return lines


def _global_batch(config: Mapping[str, Any], n_processes: int) -> int:
    batch, accumulation = config.get("batch_size", 0), config.get("gradient_accumulation_steps", 0)
    return int(batch * accumulation * n_processes)
