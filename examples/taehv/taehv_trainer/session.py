"""The processes of one job: how they join, and what they agree on before the first step."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import uuid
import warnings
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list, gather_object

from taehv_trainer.config import TrainConfig
from taehv_trainer.errors import TrainingError
from taehv_trainer.lock import OutputLock
from taehv_trainer.report import log_line


def start_session(config: TrainConfig) -> Accelerator:
    """Join the process group that accelerate's launcher prepared and return its ``Accelerator``.

    On a CPU the backend is gloo, which accelerate does not choose by itself under DeepSpeed. The group's
    timeout is DEEPSPEED_TIMEOUT, in minutes, if it is set. Raises TrainingError if the yaml given to
    ``accelerate launch`` contradicts the config.
    """
    with_gpu = torch.cuda.is_available()
    if config.mixed_precision == "bf16" and with_gpu and not torch.cuda.is_bf16_supported():
        raise TrainingError(
            f"mixed_precision='bf16', but {torch.cuda.get_device_name()} has no bfloat16",
            "pass --mixed-precision fp16",
        )
    if config.mixed_precision == "fp16" and not with_gpu:
        raise TrainingError("mixed_precision='fp16' needs a GPU", "pass --mixed-precision no or bf16")
    deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"
    if deepspeed:
        # Lets scripts that pass no backend train on CPUs, by leaving DeepSpeed out; this one passes gloo.
        os.environ.pop("ACCELERATE_USE_CPU", None)
        _quiet_deepspeed(with_gpu)
    minutes = os.environ.get("DEEPSPEED_TIMEOUT")
    group = InitProcessGroupKwargs(
        backend="nccl" if with_gpu else "gloo", timeout=timedelta(minutes=float(minutes)) if minutes else None
    )
    accelerator = Accelerator(
        cpu=not with_gpu and not deepspeed,
        mixed_precision=config.mixed_precision,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        log_with=tracker_of(config),
        project_dir=config.output_dir,
        kwargs_handlers=[group] if "RANK" in os.environ else [],
    )
    if deepspeed:
        _complete_deepspeed_config(accelerator, config)
    # Sizes never change, so the search for the fastest kernels runs once.
    torch.backends.cudnn.benchmark = with_gpu
    return accelerator


def tracker_of(config: TrainConfig) -> str | None:
    """Return the tracker that accelerate starts. Raises TrainingError if its package is missing."""
    if config.tracker == "none":
        return None
    package = {"tensorboard": "tensorboardX"}.get(config.tracker, config.tracker)
    if importlib.util.find_spec(package) is None:
        raise TrainingError(
            f"tracker={config.tracker!r}, but {package} is not installed in {sys.executable}",
            f"pip install {package}, or pass --tracker none: metrics.jsonl holds the same numbers",
        )
    return config.tracker


def start_tracker(accelerator: Accelerator, config: TrainConfig, run_id: str, step: int) -> None:
    """Open the tracker for a run that goes on after ``step``: points after it will be logged again.

    TensorBoard drops them by ``purge_step``; wandb continues the run of this id and ignores repeated steps.
    """
    if config.tracker == "none":
        return
    # For tensorboard the name becomes a folder in output_dir, for wandb it is the project.
    name = "taehv" if config.tracker == "wandb" else config.tracker
    wandb = {"dir": config.output_dir, "name": Path(config.output_dir).name, "id": run_id, "resume": "allow"}
    accelerator.init_trackers(
        name,
        config=asdict(config) if config.tracker == "wandb" else None,
        init_kwargs={"wandb": wandb, "tensorboard": {"purge_step": step + 1 if step else None}},
    )


def _quiet_deepspeed(with_gpu: bool) -> None:
    from deepspeed import ops  # type: ignore[attr-defined]

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # DeepSpeed uses names that torch 2.13 deprecates: readers of this log can do nothing about it.
    warnings.filterwarnings("ignore", message=".*torch.distributed", category=FutureWarning)
    if not with_gpu:
        # A collective over shared memory that only inference calls: without this, the first use on every
        # machine compiles it, which takes a compiler and about half a minute.
        ops.__compatible_ops__["deepspeed_shm_comm"] = False


def _complete_deepspeed_config(accelerator: Accelerator, config: TrainConfig) -> None:
    """Fill in what the yaml leaves open; a yaml that contradicts the config is refused."""
    settings = accelerator.state.deepspeed_plugin.deepspeed_config
    for key, value in {
        "train_micro_batch_size_per_gpu": config.batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "gradient_clipping": config.gradient_clipping,
    }.items():
        if settings.get(key, "auto") not in ("auto", value):
            raise TrainingError(
                f"{key} is {settings[key]} in the yaml (or on the command line) of accelerate, "
                f"but {value} in the training config",
                f"make them equal, for example by --{key.replace('_', '-')} after the script",
            )
        settings[key] = value


def every_node_sees(folder: Path, accelerator: Accelerator) -> bool:
    """Return whether ``folder`` is the same folder for all processes. Creates it."""
    (name,) = broadcast_object_list([f".shared-{uuid.uuid4().hex}"])
    token = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    if accelerator.is_main_process:
        token.touch()
    accelerator.wait_for_everyone()
    seen = torch.tensor(int(token.exists()), device=accelerator.device)
    if dist.is_initialized():
        dist.all_reduce(seen, op=dist.ReduceOp.MIN)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        token.unlink()
    return bool(seen.item())


def raise_together(error: TrainingError | None) -> None:
    """Raise the first error that any process passes, on every process; all processes must call this."""
    errors = gather_object([None if error is None else (error.message, error.hint)])
    first = next((found for found in errors if found is not None), None)
    if first is not None:
        raise TrainingError(*first, on_all_processes=True) from error


def lock_output(folder: Path, *, acquires: bool) -> OutputLock | None:
    """Make ``folder`` this job's own; the processes for which ``acquires`` is true hold the lock.

    Raises TrainingError, on every process, if another run writes there.
    """
    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    lock = OutputLock(folder, "" if job == "none" else job) if acquires else None
    refusal: TrainingError | None = None
    if lock is not None:
        try:
            warning = lock.acquire()
        except TrainingError as error:
            refusal, lock = error, None
        else:
            if warning:
                log_line("WARN", warning)
    try:
        raise_together(refusal)
    except TrainingError:
        if lock is not None:
            lock.release()
        raise
    return lock


def average(values: torch.Tensor) -> torch.Tensor:
    """Return the mean of a tensor over all processes."""
    if dist.is_initialized():
        dist.all_reduce(values, op=dist.ReduceOp.SUM)
        values /= dist.get_world_size()
    return values
