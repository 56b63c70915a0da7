"""The settings of a run: one frozen dataclass, set in a Python file, checked before use.

A config file contains ``config = TrainConfig(batch_size=8, ...)`` with plain numbers, so that a launcher can
read it without running it. Every key is also a flag of ``train.py`` (``--learning-rate 3e-4``).
"""

from __future__ import annotations

import difflib
import re
import runpy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from taehv_trainer.architecture import ARCHITECTURES, Architecture
from taehv_trainer.errors import TrainingError

_AT_LEAST_ONE = (
    "batch_size",
    "gradient_accumulation_steps",
    "max_train_steps",
    "clips_per_video",
    "clips_per_read",
    "log_every",
    "validate_every",
    "validation_clips",
    "checkpoint_every",
    "checkpoints_total_limit",
    "frame_stride",
    "picture_every",
)
_NOT_NEGATIVE = (
    "cache_mib",
    "num_workers",
    "min_learning_rate",
    "weight_decay",
    "seed",
    "adversarial_loss_weight",
    "max_nonfinite_steps",
)


def _key(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All settings of one run. Sizes are pixels and frames; batches are counted in clips."""

    batch_size: int = _key(2, "clips per process and forward pass")
    gradient_accumulation_steps: int = _key(1, "forward passes per optimizer step")
    learning_rate: float = _key(1e-4, "highest learning rate of the schedule")
    max_train_steps: int = _key(100_000, "total number of optimizer steps")

    model: Literal["full", "small", "taehv1_5", "taew2_2", "taeltx"] = _key(
        "full", "model: full (taehv, taew2_1, ...), another published one, or small for CPUs"
    )
    latent_channels: int | None = _key(None, "channels of a latent, if not those of the model")
    init_from: str | None = _key(
        None, "state dict to start from, such as a published one (.pth or .safetensors)"
    )

    data_root: str | None = _key(None, "folder of videos; if not set, the shipped sample")
    annotation_file: str | None = _key(None, "JSON list of videos; their paths are relative to data_root")
    height: int = _key(480, "height of a clip in pixels, a multiple of 8 (16 or 32 with patches of 2 or 4)")
    width: int = _key(720, "width of a clip in pixels, as height")
    num_frames: int = _key(12, "frames per clip, a multiple of 4 (8 with taeltx)")
    frame_stride: int = _key(1, "take every n-th frame of a video: clips that span more time")
    resize_short_side: int | None = _key(
        None, "shorter side of a video before cropping; if not set, videos just cover a clip"
    )
    clips_per_video: int = _key(1, "clips taken from each video per epoch")
    clips_per_read: int = _key(1, "consecutive clips cut from one decoding pass; divides batch_size")
    horizontal_flip: bool = _key(True, "mirror half of the clips")
    holdout_fraction: float = _key(
        0.1, "share held out for validation: the end of each video, or whole videos if they are short"
    )
    cache_mib: int = _key(256, "memory per process (or loader worker) for decoded short videos, in MiB")
    num_workers: int = _key(0, "loader workers per process")

    reconstruction_loss: Literal["l1", "mse"] = _key("l1", "distance between video and reconstruction")
    reconstruction_loss_weight: float = _key(1.0, "weight of the reconstruction")
    encoder_loss_weight: float = _key(0.0, "weight of the distance to the teacher's latents")
    adversarial_loss_weight: float = _key(
        0.0, "weight of an adversarial loss: sharper, and further from the video; for trained weights"
    )
    teacher_checkpoint: str | None = _key(None, "state dict of a TAEHV whose latents are the target")
    teacher_latents: str | None = _key(
        None, "folder with the target latents: <video's path below data_root>.safetensors"
    )
    decoder_input: Literal["teacher", "student"] = _key(
        "teacher", "whose latents the decoder learns to decode, with a teacher"
    )

    warmup_steps: int = _key(0, "steps over which the learning rate rises from 0")
    min_learning_rate: float = _key(0.0, "learning rate at the end of the cosine")
    weight_decay: float = _key(0.0, "weight decay of AdamW")
    adam_beta1: float = _key(0.9, "decay of AdamW's mean of gradients")
    adam_beta2: float = _key(0.95, "decay of AdamW's mean of squared gradients")
    gradient_clipping: float = _key(1.0, "largest norm of a gradient; grows with the weights of the losses")
    max_nonfinite_steps: int = _key(
        0, "steps in a row that are skipped for a NaN or infinite gradient before the run stops"
    )
    ema_decay: float = _key(0.999, "decay of the averaged weights, which are validated and exported")
    mixed_precision: Literal["no", "bf16", "fp16"] = _key(
        "no", "number format of forward and backward pass; fp16 for GPUs without bf16"
    )
    activation_checkpointing: bool = _key(False, "recompute activations in the backward pass to save memory")
    compile: bool = _key(False, "torch.compile the model, which fuses the operations between convolutions")
    channels_last: bool = _key(False, "store frames with channels last, as cuDNN's bf16 kernels prefer")
    seed: int = _key(
        0, "seed of the initial weights and of the training clips; validation does not depend on it"
    )

    output_dir: str = _key(
        "runs/taehv", "folder for checkpoints, metrics and pictures, shared by all nodes if possible"
    )
    log_every: int = _key(10, "steps between log lines")
    validate_every: int = _key(1000, "steps between validations; one more comes at the end")
    validation_clips: int = _key(8, "clips per validation, over all processes")
    picture_every: int = _key(5, "validations between pictures; one more comes at the end")
    checkpoint_every: int = _key(1000, "steps between checkpoints; one more comes at the end")
    checkpoints_total_limit: int = _key(3, "checkpoints to keep; older ones are deleted")
    resume_from_checkpoint: str = _key("latest", "'latest', 'none' or the path of a checkpoint")
    tracker: Literal["tensorboard", "wandb", "none"] = _key(
        "tensorboard", "where to send metrics and pictures, besides output_dir"
    )
    profile: bool = _key(False, "write a trace of three early steps to output_dir/profile")

    @property
    def clip_span(self) -> int:
        """Frames of a video from a clip's first to its last."""
        return (self.num_frames - 1) * self.frame_stride + 1

    @property
    def architecture(self) -> Architecture:
        """The shape of the model to train."""
        architecture = ARCHITECTURES[self.model]
        channels = self.latent_channels
        return architecture if channels is None else replace(architecture, latent_channels=channels)


def check(config: TrainConfig) -> None:
    """Raise TrainingError if a value has the wrong type, is out of range, or cannot take effect."""
    for name, kind in key_types().items():
        _check_type(name, getattr(config, name), kind)
    for name, (holds, expected) in _rules(config).items():
        if not holds:
            raise _bad_value(name, getattr(config, name), expected)


def _rules(c: TrainConfig) -> Mapping[str, tuple[bool, str]]:
    """Return ``{key: (holds, what is expected)}``."""
    space, time = c.architecture.space_factor, c.architecture.time_factor
    teachers = [t for t in (c.teacher_checkpoint, c.teacher_latents) if t is not None]
    return {
        **{name: (getattr(c, name) >= 1, "expected at least 1") for name in _AT_LEAST_ONE},
        **{name: (getattr(c, name) >= 0, "expected no negative number") for name in _NOT_NEGATIVE},
        "height": (c.height > 0 and c.height % space == 0, f"expected a multiple of {space}"),
        "width": (c.width > 0 and c.width % space == 0, f"expected a multiple of {space}"),
        "latent_channels": (c.latent_channels is None or c.latent_channels >= 1, "expected at least 1"),
        "num_frames": (
            c.num_frames % time == 0 and c.num_frames >= (2 * time if c.teacher_latents else time),
            f"expected a multiple of {time}"
            + (
                f", at least {2 * time}: the first latent of a clip is no target" if c.teacher_latents else ""
            ),
        ),
        "clips_per_read": (
            c.clips_per_read >= 1 and c.batch_size % c.clips_per_read == 0,
            f"expected a divisor of batch_size={c.batch_size}",
        ),
        "frame_stride": (
            c.frame_stride == 1 or (c.frame_stride > 1 and not c.teacher_latents),
            "expected 1 with teacher_latents, which were made from all frames",
        ),
        "decoder_input": (
            c.decoder_input == "teacher" or bool(teachers),
            "it has no effect without teacher_checkpoint or teacher_latents",
        ),
        "resize_short_side": (
            c.resize_short_side is None or c.resize_short_side >= min(c.height, c.width),
            "expected no less than the smaller of height and width",
        ),
        "holdout_fraction": (0 < c.holdout_fraction < 1, "expected a number between 0 and 1"),
        **{
            name: (0 <= getattr(c, name) < 1, "expected a number from 0 to below 1")
            for name in ("ema_decay", "adam_beta1", "adam_beta2")
        },
        "gradient_clipping": (c.gradient_clipping > 0, "expected a number above 0"),
        "reconstruction_loss_weight": (c.reconstruction_loss_weight > 0, "expected a number above 0"),
        "learning_rate": (
            c.learning_rate > c.min_learning_rate,
            f"expected more than min_learning_rate={c.min_learning_rate!r}",
        ),
        "warmup_steps": (
            0 <= c.warmup_steps < c.max_train_steps,
            f"expected less than max_train_steps={c.max_train_steps}: the full rate would never be reached",
        ),
        "teacher_latents": (
            len(teachers) < 2,
            "teacher_checkpoint is given too, and only one of them can be the target",
        ),
        "horizontal_flip": (
            not (c.horizontal_flip and c.teacher_latents),
            "expected False, because teacher_latents were made from videos that are not mirrored",
        ),
        "encoder_loss_weight": (
            c.encoder_loss_weight > 0 if teachers else c.encoder_loss_weight == 0,
            "expected a weight above 0 for the teacher that is given"
            if teachers
            else "it has no effect without teacher_checkpoint or teacher_latents",
        ),
    }


def key_types() -> dict[str, Any]:
    """Return the type of every key, in order."""
    hints = get_type_hints(TrainConfig)
    return {f.name: hints[f.name] for f in fields(TrainConfig)}


def _check_type(name: str, value: object, kind: Any) -> None:
    if get_origin(kind) is Literal:
        fits, expected = value in get_args(kind), "one of " + ", ".join(map(repr, get_args(kind)))
    else:
        kinds = get_args(kind) or (kind,)
        accepted = (*kinds, int) if float in kinds else kinds
        fits = isinstance(value, accepted) and (bool in kinds or not isinstance(value, bool))
        expected = " or ".join("None" if k is NoneType else k.__name__ for k in kinds)
    if not fits:
        raise _bad_value(name, value, f"expected {expected}")


def _bad_value(name: str, value: object, expected: str) -> TrainingError:
    return TrainingError(f"{name}={value!r}: {expected}", f"change {name} in the config or by flag")


def load_config(path: Path, overrides: Mapping[str, object] | None = None) -> TrainConfig:
    """Run the config file at ``path`` and return its ``config``, with ``overrides`` applied.

    Raises TrainingError if the file is missing or broken, or a key or value cannot be used.
    """
    if not path.is_file():
        raise TrainingError(f"{path} does not exist", "check --config")
    try:
        config = runpy.run_path(str(path)).get("config")
    except TypeError as error:
        raise _unknown_key(path, error) from error
    except Exception as error:
        raise TrainingError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    if not isinstance(config, TrainConfig):
        raise TrainingError(f"{path} defines no config", "end it with config = TrainConfig(...)")
    changes: dict[str, Any] = dict(overrides or {})
    config = replace(config, **changes)
    try:
        check(config)
    except TrainingError as error:
        raise TrainingError(f"{path}: {error.message}", error.hint) from None
    return config


def _unknown_key(path: Path, error: TypeError) -> TrainingError:
    found = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if found is None:
        return TrainingError(f"{path} cannot be run: TypeError: {error}")
    near = difflib.get_close_matches(found[1], key_types(), n=1)
    hint = f"did you mean {near[0]}?" if near else "train.py --help lists the keys"
    return TrainingError(f"{path}: {found[1]} is no key of TrainConfig", hint)
