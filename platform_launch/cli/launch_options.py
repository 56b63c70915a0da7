"""Options that describe a launch, for `run` and every command that examines the same launch."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
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
        help="What starts the processes (default: accelerate). python starts one per node.",
    ),
    click.option(
        "--jax-per-gpu", is_flag=True, help="With --launcher jax: start one process per GPU, not per node."
    ),
    click.option(
        "--bind",
        type=click.Choice(MODES),
        default=MODES[0],
        show_default=True,
        help="Run each rank on the CPUs of its GPU's NUMA node, or on an exclusive part of them.",
    ),
    click.option(
        "--script",
        type=click.Path(path_type=Path),
        help="Python script to run. Its arguments follow --.",
    ),
    click.option(
        "--module", "-m", metavar="NAME", help="Python module to run, as python -m does, e.g. pkg.train."
    ),
    click.option(
        "--example",
        type=click.Choice(list(EXAMPLES)),
        help="Run an example that comes with this project.",
    ),
    click.option("--config", type=click.Path(path_type=Path), help="Training config, passed on as --config."),
    click.option(
        "--deepspeed-config", type=click.Path(path_type=Path), help="Accelerate YAML to launch with."
    ),
    click.option(
        "--recipe",
        metavar="NAME",
        shell_complete=completion.names(lambda _ctx: ("auto", "cpu", "8gpu", "16gpu")),
        help="Use the accelerate YAML of a recipe: auto, cpu, 8gpu or 16gpu.",
    ),
    click.option(
        "--no-observe",
        is_flag=True,
        help="Do not observe the job's processes. Hangs are then not explained.",
    ),
    click.option(
        "--memory-snapshot",
        is_flag=True,
        help="If a rank runs out of GPU memory, write its allocations to the log folder, for `why`.",
    ),
    click.option("--strict", is_flag=True, help="Fail if no recipe is for exactly this number of GPUs."),
    click.option(
        "--job-name", help="Name of the job, also in the names of logs (default: the platform's job id)."
    ),
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
        help="Maximum size of a log; the middle is removed. 0: no limit.",
    ),
    click.option(
        "--grace-period",
        "grace_s",
        type=Number(0),
        metavar="SECONDS",
        help="Time between SIGTERM and SIGKILL (default: 25).",
    ),
)


# The order of `--help`, the most used first.
GROUPS = {
    "Launch": (
        *("script", "module", "launcher", "nproc_per_node", "example", "config", "recipe"),
        *("deepspeed_config", "bind", "jax_per_gpu", "strict", "no_doctor"),
    ),
    "Topology": (
        *("nnodes", "node_rank", "master_addr", "master_port", "platform", "ranks_from"),
        *("rank_order", "roll_call_timeout_s", "no_roll_call"),
    ),
    "Recovery": (
        *(
            "max_restarts",
            "spares",
            "min_nodes",
            "on_hang",
            "grace_s",
            "notice_signal",
            "node_timeout_s",
            "quarantine",
        ),
    ),
    "Monitoring": (
        "hang_after_s",
        "metrics",
        "health_interval_s",
        "memory_snapshot",
        "no_observe",
        "no_trainjob_status",
    ),
    "Output": (
        *("print_env", "form", "assume_gpus", "verbose", "job_name", "log_dir", "log_limit_gib"),
        *("lang", "help"),
    ),
}


def grouped(params: Iterable[click.Parameter]) -> dict[str, list[click.Parameter]]:
    """Return a command's options by group; the command's own come first, under the empty title."""
    left = {"help" if "--help" in param.opts else param.name or "": param for param in params}
    groups = {title: [left.pop(name) for name in names if name in left] for title, names in GROUPS.items()}
    return {"": list(left.values()), **groups}


def request(values: dict[str, Any]) -> Request:
    """Return the request for a command's parameters; the arguments after ``--`` go to the program.

    Raises HardwareError if no temporary file can be written.
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
