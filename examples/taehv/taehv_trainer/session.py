"""The processes of one job: how they are joined, and what they must agree on before the first step."""

from __future__ import annotations

import logging
import os
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

from taehv_trainer.config import TrainConfig
from taehv_trainer.errors import TrainingError


def start_session(config: TrainConfig) -> Accelerator:
    """Join the process group that accelerate's launcher prepared and return its ``Accelerator``.

    On a CPU the backend is gloo, which accelerate does not choose by itself under DeepSpeed. The group's
    timeout is DEEPSPEED_TIMEOUT, in minutes, where it is set. Raises TrainingError when the yaml given to
    ``accelerate launch`` contradicts the config.
    """
    with_gpu = torch.cuda.is_available()
    if config.mixed_precision == "bf16" and with_gpu and not torch.cuda.is_bf16_supported():
        raise TrainingError(
            f"mixed_precision='bf16', but {torch.cuda.get_device_name()} has no bfloat16",
            "pass --mixed-precision no",
        )
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
        log_with=None if config.tracker == "none" else config.tracker,
        project_dir=config.output_dir,
        kwargs_handlers=[group] if "RANK" in os.environ else [],
    )
    if deepspeed:
        _complete_deepspeed_config(accelerator, config)
    if config.tracker != "none":
        accelerator.init_trackers(config.tracker)  # the name becomes a folder in output_dir
    return accelerator


def _quiet_deepspeed(with_gpu: bool) -> None:
    from deepspeed import ops  # type: ignore[attr-defined]

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # DeepSpeed calls collectives by names that torch 2.13 deprecates: nobody who reads this log can help it.
    warnings.filterwarnings("ignore", message=".*torch.distributed", category=FutureWarning)
    if not with_gpu:
        # A collective over shared memory that only inference calls: without this, the first use on every
        # machine compiles it, which takes a compiler and about half a minute.
        ops.__compatible_ops__["deepspeed_shm_comm"] = False


def _complete_deepspeed_config(accelerator: Accelerator, config: TrainConfig) -> None:
    """Fill in what the yaml leaves open; the config decides, and a yaml that says otherwise is refused."""
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
    """Say whether ``folder`` is the same folder for all processes. Creates it."""
    token = folder / ".shared"
    folder.mkdir(parents=True, exist_ok=True)
    if accelerator.is_main_process:
        token.write_text(str(os.getpid()), encoding="utf-8")
    accelerator.wait_for_everyone()
    seen = torch.tensor(int(token.exists()), device=accelerator.device)
    if dist.is_initialized():
        dist.all_reduce(seen, op=dist.ReduceOp.MIN)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        token.unlink()
    return bool(seen.item())


def same_everywhere(value: int, accelerator: Accelerator) -> bool:
    """Say whether all processes passed the same number."""
    bounds = torch.tensor([value, -value], device=accelerator.device)
    if dist.is_initialized():
        dist.all_reduce(bounds, op=dist.ReduceOp.MAX)
    return bool(bounds[0] == -bounds[1])


def average(values: torch.Tensor) -> torch.Tensor:
    """Return the mean of a tensor over all processes."""
    if dist.is_initialized():
        dist.all_reduce(values, op=dist.ReduceOp.SUM)
        values /= dist.get_world_size()
    return values
