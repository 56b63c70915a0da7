"""Options that describe a launch: those of `run`, and of every command that looks at the same launch."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from platform_launch.cli import completion, options
from platform_launch.cli.flags import Number, flags
from platform_launch.hardware.storage import own_temporary_folder
from platform_launch.plan.binding import MODES
from platform_launch.plan.request import EXAMPLES, LAUNCHERS, Request
from platform_launch.project import logs_folder, project_root

launch_options = flags(
    options.lang_option,
    options.topology_options,
    click.option(
        "--launcher",
        type=click.Choice(LAUNCHERS),
        help="What starts the processes (default: accelerate); python starts a single one.",
    ),
    click.option(
        "--jax-per-gpu", is_flag=True, help="With --launcher jax: one process per GPU, not one per node."
    ),
    click.option(
        "--bind",
        type=click.Choice(MODES),
        default=MODES[0],
        show_default=True,
        help="CPUs of each rank: all of its GPU's NUMA node, or an exclusive part of them.",
    ),
    click.option(
        "--script",
        type=click.Path(path_type=Path),
        help="Python script to run; its arguments follow after --.",
    ),
    click.option(
        "--module", "-m", metavar="NAME", help="Python module to run, as python -m does, e.g. pkg.train."
    ),
    click.option(
        "--example",
        type=click.Choice(list(EXAMPLES)),
        help="Run a training that comes with this project.",
    ),
    click.option("--config", type=click.Path(path_type=Path), help="Training config, passed on as --config."),
    click.option(
        "--deepspeed-config", type=click.Path(path_type=Path), help="Accelerate yaml to launch with."
    ),
    click.option(
        "--recipe",
        metavar="NAME",
        shell_complete=completion.names(lambda _ctx: ("auto", "cpu", "8gpu", "16gpu")),
        help="Use the accelerate yaml of a recipe: auto, cpu, 8gpu or 16gpu.",
    ),
    click.option(
        "--no-observe",
        is_flag=True,
        help="Do not observe the job's processes; hangs are not explained.",
    ),
    click.option("--strict", is_flag=True, help="Fail if recipes.yaml has no entry for this number of GPUs."),
    click.option("--job-name", help="Names the log files (default: the platform's job id)."),
    click.option(
        "--log-dir",
        type=click.Path(path_type=Path),
        shell_complete=completion.folders,
        help="Folder for logs (default: logs/ in the checkout or working directory).",
    ),
    click.option(
        "--log-limit",
        "log_limit_gib",
        type=Number(0),
        default=4,
        show_default=True,
        metavar="GIB",
        help="Maximum size of a log: head and tail are kept. 0: no limit.",
    ),
    click.option(
        "--grace-period",
        "grace_s",
        type=Number(0),
        metavar="SECONDS",
        help="Time from SIGTERM to SIGKILL.",
    ),
)


def request(values: dict[str, Any]) -> Request:
    """Make the request of a command's parameters; the words after ``--`` belong to what it starts.

    Raises HardwareError where no temporary file can be written.
    """
    temporary, problem = own_temporary_folder()
    started = time.strftime("%Y%m%d-%H%M%S")
    observed = not values.pop("no_observe") and not problem
    return Request(
        root=project_root(),
        python=sys.executable,
        temporary=str(temporary),
        temporary_problem=problem,
        default_log_dir=logs_folder(),
        observe_folder=str(temporary / f"observe-{started}-{os.getpid()}") if observed else None,
        started=started,
        overrides=options.overrides(values),
        arguments=click.get_current_context().meta["arguments"],
        **values,
    )
