"""``platform-launch run``: run this node's part of the job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from platform_launch import hardware
from platform_launch.cli import completion, launch_options, options
from platform_launch.cli.program import message_of
from platform_launch.console import Console
from platform_launch.console.screen import columns
from platform_launch.environment import Environment
from platform_launch.errors import UsageError
from platform_launch.events import Event
from platform_launch.plan.launch_plan import LaunchPlan, build_plan
from platform_launch.platforms import detect
from platform_launch.text import Phrase

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_EXAMPLE = "PLATFORM_LAUNCH_EXAMPLE"
_LOG_WIDTH = 120  # columns, if the output is not a terminal


class ArgumentsAfterDashes(click.Command):
    """A command that passes on the arguments after ``--`` unchanged."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Add what follows ``--`` to the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- ARGUMENTS | -- COMMAND ARGUMENTS]"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups."""
        for title, params in launch_options.grouped(self.get_params(ctx)).items():
            records = (param.get_help_record(ctx) for param in params if isinstance(param, click.Option))
            if rows := [record for record in records if record is not None]:
                with formatter.section(title or "Options"):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the options, and files to the script."""
        if ctx.meta["is_cut"]:
            return completion.files(ctx, self.params[0], incomplete)
        return super().shell_complete(ctx, incomplete)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before ``--``, and keep the others in ``ctx.meta["arguments"]``."""
        cut = args.index("--") if "--" in args else len(args)
        ctx.meta["arguments"] = tuple(args[cut + 1 :])
        ctx.meta["is_cut"] = cut < len(args)
        try:
            return super().parse_args(ctx, args[:cut])
        except (click.BadParameter, click.BadOptionUsage) as error:  # an option of ours with a wrong value
            error.ctx = ctx
            raise
        except click.UsageError as error:
            is_named = any(one.partition("=")[0] in ("--script", "--module") for one in args[:cut])
            raise UsageError(
                message_of(error),
                "put the program's own arguments after --"
                if is_named
                else "name what to run with --script FILE, --module NAME, or -- COMMAND; arguments of the "
                "program follow --",
            ) from error


class _Run(ArgumentsAfterDashes):
    """Runs the example that PLATFORM_LAUNCH_EXAMPLE names if there are no arguments at all."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, or ``--example NAME`` instead of none."""
        example = Environment.of_this_process(_EXAMPLE).get(_EXAMPLE)
        return super().parse_args(ctx, args or (["--example", example] if example else []))


@click.command("run", cls=_Run)
@launch_options.launch_options
@click.option("--no-doctor", is_flag=True, help="Skip preflight checks.")
@options.together_options
@click.option(
    "--ranks-from",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Take this node's rank from a folder that all nodes share. Needs --nnodes.",
)
@click.option("--print-env", is_flag=True, help="Print what would run and why, and run nothing.")
@options.assume_gpus
@click.option(
    "--format", "form", type=click.Choice(["table", "shell", "json"]), help="Format of --print-env."
)
def command(
    form: str | None,
    print_env: bool,
    assume_gpus: str | None,
    no_doctor: bool,
    ranks_from: Path | None,
    **flags: Any,
) -> int:
    """Launch a job on this node. The platform runs the same command on every node.

    \b
    platform-launch run --script train.py -- --lr 1e-4
    platform-launch run --module pkg.train -- --lr 1e-4
    platform-launch run -- llamafactory-cli train config.yaml

    A command starts once per node and reads the node's place from NNODES, NODE_RANK, NPROC_PER_NODE,
    MASTER_ADDR and MASTER_PORT. A script or a module starts once per GPU.
    """
    rehearsing = [f"--{name}" for name, value in (("assume-gpus", assume_gpus), ("format", form)) if value]
    if rehearsing and not print_env:
        given = " and ".join(rehearsing)
        raise UsageError(
            Phrase("{given} needs --print-env, which prints what would run", given=given),
            Phrase("add --print-env to see what would run, or leave {given} out to launch", given=given),
        )
    if print_env and ranks_from is not None:
        raise UsageError(
            "--ranks-from claims a rank, but --print-env changes nothing: expected only one of them",
            "to try a rank, pass --node-rank and --master-addr",
        )
    env = Environment.of_this_process()
    together = options.together(flags)
    request = launch_options.request(flags)
    if not print_env:
        from platform_launch.launch.job import run_node

        return run_node(env, request, together, ranks_from, examine=not no_doctor)
    topology = detect(env, request.overrides)
    machine = hardware.detect(env, master_addr=topology.master_addr, assume=assume_gpus)
    _print(build_plan(env, machine, request, topology), form or "table")
    return 0


def _print(plan: LaunchPlan, form: str) -> None:
    from platform_launch.plan import render

    if form == "json":
        click.echo(render.render_json(plan))
    elif form == "shell":
        click.echo(render.render_shell(plan))
    else:
        width = columns() if sys.stdout.isatty() else _LOG_WIDTH
        click.echo(render.render_table(plan, width))
    console = Console()
    for warning in plan.warnings:
        console.report(Event(warning.id, "WARN", warning.origin, {"what": warning.text}))
