"""What the user asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from platform_launch.topology import Overrides

# The recipe that fits the number of GPUs.
AUTO = "auto"
LAUNCHERS = ("accelerate", "torchrun", "jax", "python")


@dataclass(frozen=True)
class Request:
    """The flags of one launch. None means "choose for me".

    ``root`` is the project's root, ``python`` the interpreter that runs the training, ``temporary`` a folder
    on a local disk (``temporary_problem`` says why it must not be used, empty when it may), ``started`` a
    time stamp that tells the files of one launch from those of another, ``default_log_dir`` where logs go
    without ``log_dir``.
    ``recipe`` names one of configs/recipes.yaml, or is :data:`AUTO`.
    ``observe_folder`` is where the training's processes answer questions, None for --no-observe.
    ``launcher`` is one of :data:`LAUNCHERS`; ``grace_s`` the time from SIGTERM to SIGKILL;
    ``log_limit_gib`` how large the log may become, 0 without a limit.
    """

    root: Path
    python: str
    temporary: str
    started: str
    default_log_dir: Path
    temporary_problem: str = ""
    observe_folder: str | None = None
    overrides: Overrides = field(default_factory=Overrides)
    script: Path | None = None
    script_args: tuple[str, ...] = ()
    config: Path | None = None
    deepspeed_config: Path | None = None
    recipe: str | None = None
    strict: bool = False
    launcher: str = "accelerate"
    jax_per_gpu: bool = False
    grace_s: float | None = None
    job_name: str | None = None
    log_dir: Path | None = None
    log_limit_gib: float = 4.0
