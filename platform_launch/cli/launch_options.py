"""Options that describe a launch: those of `run`, and of every command that looks at the same launch."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from platform_launch.cli import options
from platform_launch.cli.options import Function
from platform_launch.hardware.storage import temporary_folder
from platform_launch.project import logs_folder, project_root
from platform_launch.settings.request import LAUNCHERS, Request

_TRAINING = (
    click.option(
        "--launcher",
        type=click.Choice(LAUNCHERS),
        default=LAUNCHERS[0],
        show_default=True,
        help="Who starts this node's processes; python starts a single one.",
    ),
    click.option("--jax-per-gpu", is_flag=True, help="With --launcher jax: a process a GPU, not one a node."),
    click.option(
        "--script",
        type=click.Path(path_type=Path),
        help="Your training script (default: TAEHV; examples/ddp for torchrun, examples/jax for jax).",
    ),
    click.option("--config", type=click.Path(path_type=Path), help="Training config, passed to the script."),
    click.option(
        "--deepspeed-config", type=click.Path(path_type=Path), help="Accelerate yaml to launch with."
    ),
    click.option("--strict", is_flag=True, help="Refuse a number of GPUs that recipes.yaml does not list."),
    click.option("--job-name", help="Names the log files (default: the platform's job id)."),
    click.option("--log-dir", type=click.Path(path_type=Path), help="Folder for logs (default: logs/ here)."),
    click.option(
        "--grace-period",
        "grace_s",
        type=click.FloatRange(0),
        metavar="SECONDS",
        help="From SIGTERM to SIGKILL.",
    ),
)


def launch_options(function: Function) -> Function:
    """Add the flags of a launch."""
    for option in reversed(_TRAINING):
        function = option(function)
    return options.topology_options(function)


def request(flags: dict[str, Any]) -> Request:
    """Make the request of a command's parameters; those after ``--`` are the script's.

    Raises HardwareError where no temporary file can be written.
    """
    return Request(
        root=project_root(),
        python=sys.executable,
        temporary=f"{temporary_folder()}/platform_launch_{os.getuid()}",
        default_log_dir=logs_folder(),
        started=time.strftime("%Y%m%d-%H%M%S"),
        overrides=options.overrides(flags),
        script_args=click.get_current_context().meta["script_args"],
        **flags,
    )
