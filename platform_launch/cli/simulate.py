"""``platform-launch simulate``: start several nodes of a job on this machine, as a platform would."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from platform_launch import hardware
from platform_launch.cli import completion, launch_options, run
from platform_launch.cli.options import together
from platform_launch.console import Console, languages
from platform_launch.environment import Environment
from platform_launch.errors import LaunchError, UsageError
from platform_launch.plan.found_variables import FROM_SIMULATE
from platform_launch.plan.launch_plan import LaunchPlan, build_plan
from platform_launch.project import project_root
from platform_launch.text import Phrase

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_PLACES = Phrase("this command assigns the ranks; --nodes sets the number of nodes")
_INSTEAD = {
    "print_env": Phrase("platform-launch run --print-env shows what one node would run"),
    "assume_gpus": Phrase(
        "this command uses this machine's own devices; platform-launch run --print-env assumes others"
    ),
}


class WithOptionsOfRun(run.ArgumentsAfterDashes):
    """A command that takes the options of `run` too, and completes them."""

    format_options = click.Command.format_options

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the options of both."""
        own = super().shell_complete(ctx, incomplete)
        return own if ctx.meta["is_cut"] else [*own, *run.command.shell_complete(ctx, incomplete)]


def value_for_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer values for the option of `run` that was typed last, or files."""
    last = next(reversed(ctx.params["run_options"]), None)
    options = (one for one in run.command.params if isinstance(one, click.Option) and not one.is_flag)
    option = next((one for one in options if last in one.opts), None)
    return option.shell_complete(ctx, incomplete) if option else completion.files(ctx, param, incomplete)


def read_run_options(words: Sequence[str], command: str) -> dict[str, Any]:
    """Return the options of `run`: a wrong one is rejected once, not on every node.

    Raises UsageError also for options that ``command`` sets itself.
    """
    values = run.command.make_context("run", list(words)).params
    for name in (
        "nnodes",
        "node_rank",
        "master_addr",
        "master_port",
        "platform",
        "print_env",
        "ranks_from",
        "assume_gpus",
    ):
        if values[name] is not None and values[name] is not False:  # rank 0 is a rank
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                Phrase("{flag} cannot be used with {command}", flag=flag, command=command),
                _INSTEAD.get(name, _PLACES),
            )
    return values


@click.command(
    "simulate",
    cls=WithOptionsOfRun,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    metavar="N",
    help="Number of nodes to start.",
)
@click.argument(
    "run_options", nargs=-1, type=click.UNPROCESSED, metavar="[run options]", shell_complete=value_for_run
)
def command(nodes: int, run_options: tuple[str, ...]) -> int:
    """Start several nodes of a job on this machine, on the CPU or with its GPUs split among them.

    Takes the options of `run` and the arguments after --. If one node fails, all are stopped.
    """
    from platform_launch.launch.job import VERBOSE
    from platform_launch.simulation import nodes as simulation
    from platform_launch.supervise import DEFAULT_GRACE_S, Command
    from platform_launch.supervise.processes import fill_closed_descriptors

    fill_closed_descriptors()

    values = read_run_options(run_options, "simulate")
    options = list(run_options)
    root = project_root()
    if values["example"] == "taehv" and values["config"] is None:
        options += ["--config", str(root / "configs" / "taehv_config_small.py")]
    env = Environment.of_this_process()
    spares, least = values["spares"], values["min_nodes"]
    total = nodes + spares
    nproc = values["nproc_per_node"] or 1
    shares = simulation.node_variables(hardware.detect(env), total, nproc, Console())
    entrypoint, chosen = simulation.entrypoint(root)
    environments = [
        {
            **env.inherited(),
            **chosen,
            **share,
            FROM_SIMULATE: " ".join(share),
            **of_platform,
            languages.VARIABLE: languages.current(),
        }
        for share, of_platform in zip(shares, simulation.platform_variables(total), strict=True)
    ]
    try:
        plan = _plan(options, Environment(environments[0]))
    except LaunchError as error:
        error.marked = True  # as it would be on every node
        raise
    logs = plan.log_path.parent
    of_earlier_launches = set(logs.glob("train_*.log"))
    arguments = [*options, "--", *click.get_current_context().meta["arguments"]]
    commands = [Command((*entrypoint, *arguments), variables) for variables in environments]
    started = time.monotonic()
    grace_s = DEFAULT_GRACE_S if values["grace_s"] is None else values["grace_s"]
    code, failed = simulation.simulate(
        commands,
        [f"node {rank}" for rank in range(total)],
        grace_s=grace_s,
        may_lose=total - (nodes if least is None else least),
    )
    written = sorted(set(logs.glob("train_*.log")) - of_earlier_launches)
    verbose = values["verbose"] or VERBOSE in env
    finished, duration_s = min(nodes, total - failed), time.monotonic() - started
    simulation.conclude(written, plan, nodes, finished, code, duration_s, verbose=verbose)
    return code


def _plan(run_options: Sequence[str], env: Environment) -> LaunchPlan:
    """Plan node 0's launch: what every node would reject is rejected here, once."""
    flags = run.command.make_context("run", list(run_options)).params
    together(flags)
    examined = not flags["no_doctor"]
    for name in ("no_doctor", "print_env", "ranks_from", "assume_gpus", "form"):
        del flags[name]
    plan = build_plan(
        env, hardware.detect(env, master_addr=env["MASTER_ADDR"]), launch_options.request(flags)
    )
    if examined:
        from platform_launch.doctor.checks.installation import missing_packages
        from platform_launch.doctor.finding import refuse
        from platform_launch.doctor.gather import gather

        refuse(missing_packages(gather(env, plan)))
    return plan
