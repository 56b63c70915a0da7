"""What the user asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from platform_launch.topology import Overrides

LAUNCHERS = ("accelerate", "torchrun", "jax", "python")


@dataclass(frozen=True)
class Request:
    """The flags of one launch. None means "choose for me".

    ``root`` is the project's root, ``python`` the interpreter that runs the training, ``temporary`` a folder
    on a local disk, ``started`` a time stamp that tells the files of one launch from those of another,
    ``default_log_dir`` where logs go without ``log_dir``.
    ``launcher`` is one of :data:`LAUNCHERS`; ``grace_s`` the time from SIGTERM to SIGKILL.
    """

    root: Path
    python: str
    temporary: str
    started: str
    default_log_dir: Path
    overrides: Overrides = field(default_factory=Overrides)
    script: Path | None = None
    script_args: tuple[str, ...] = ()
    config: Path | None = None
    deepspeed_config: Path | None = None
    strict: bool = False
    launcher: str = "accelerate"
    jax_per_gpu: bool = False
    grace_s: float | None = None
    job_name: str | None = None
    log_dir: Path | None = None
