"""``platform-launch run``: this node's part of the job, from the variables to the exit code."""

from __future__ import annotations

import shutil
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from platform_launch import hardware
from platform_launch.cli import launch_options, options
from platform_launch.cli.options import TogetherFlags
from platform_launch.cli.voice import Voice
from platform_launch.environment import Environment
from platform_launch.errors import LaunchError, UsageError
from platform_launch.hardware import cgroup
from platform_launch.plan import LaunchPlan, build_plan
from platform_launch.platforms import detect
from platform_launch.settings.request import Request
from platform_launch.topology import Topology

if TYPE_CHECKING:
    from platform_launch.doctor import Finding
    from platform_launch.node import Result
    from platform_launch.supervise import Outcome
    from platform_launch.why import Verdict

_LOG_WIDTH = 120  # columns of what is not shown on a terminal


class ScriptArguments(click.Command):
    """A command whose arguments after ``--`` belong to the training script, whatever they look like."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what stands before ``--`` and keep the rest in ``ctx.meta["script_args"]``."""
        cut = args.index("--") if "--" in args else len(args)
        ctx.meta["script_args"] = tuple(args[cut + 1 :])
        try:
            return super().parse_args(ctx, args[:cut])
        except click.UsageError as error:
            if "unexpected extra argument" in error.message:
                raise UsageError(
                    f"unexpected argument in {' '.join(args[:cut])!r}: this command takes options only",
                    "name a script with --script FILE; its own arguments follow after --",
                ) from error
            if isinstance(error, click.NoSuchOption) and cut == len(args):
                raise UsageError(
                    error.format_message(),
                    "--help lists the options; those of your script follow after --, e.g. "
                    f"--script train.py -- {error.option_name} …",
                ) from error
            raise


@click.command("run", cls=ScriptArguments)
@launch_options.launch_options
@click.option("--no-doctor", is_flag=True, help="Start in spite of what the doctor's cheap checks find.")
@options.together_options
@click.option("--print-env", is_flag=True, help="Print what would run and why, and run nothing.")
@options.assume_gpus
@click.option("--format", "form", type=click.Choice(["table", "shell", "json"]), help="With --print-env.")
def command(
    form: str | None,
    print_env: bool,
    assume_gpus: str | None,
    no_doctor: bool,
    **flags: Any,
) -> int:
    """Launch training on this node. The platform runs the same command on every node.

    Usage: run [options] [-- script arguments]
    """
    if not print_env and (assume_gpus is not None or form is not None):
        raise UsageError(
            "--assume-gpus and --format only rehearse: expected --print-env beside them",
            "add --print-env, or leave them out to launch",
        )
    env = Environment.of_this_process()
    together = options.together(flags)
    request = launch_options.request(flags)
    # The variables first: what they say wrong must not wait for a driver.
    topology = detect(env, request.overrides)
    if print_env:
        machine = hardware.detect(env, master_addr=topology.master_addr, assume=assume_gpus)
        _print(build_plan(env, machine, request), form or "table")
        return 0
    return _launch(topology, env, request, together, examine=not no_doctor)


def _print(plan: LaunchPlan, form: str) -> None:
    from platform_launch import render

    if form == "json":
        click.echo(render.render_json(plan))
    elif form == "shell":
        click.echo(render.render_shell(plan))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _LOG_WIDTH
        click.echo(render.render_table(plan, width))
    voice = Voice()
    for warning in plan.warnings:
        voice.warn(warning)


def _launch(
    topology: Topology, env: Environment, request: Request, together: TogetherFlags, *, examine: bool
) -> int:
    """Say what was decided, hand over to the launcher, and return the training's exit code."""
    from platform_launch.cli.nodes import telling_the_others, train
    from platform_launch.cli.stages import announce

    voice = Voice(f"[node {topology.node_rank}] " if topology.nnodes > 1 else "")
    try:
        with telling_the_others(topology, env, together, voice):
            plan = build_plan(env, hardware.detect(env, master_addr=topology.master_addr), request)
            announce(plan, voice, _findings(plan, env) if examine else [])
        oom_kills = cgroup.OomKills()
        result = train(plan, env, request.grace_s, together, voice)
    except LaunchError as error:
        voice.keep_error(error.message, error.hint)
        raise
    _finish_speaking()
    _conclude(plan, result, _verdict(result.outcome, oom_kills.so_far()), voice)
    return result.exit_code


def _conclude(plan: LaunchPlan, result: Result, verdict: Verdict | None, voice: Voice) -> None:
    """Say how it ended and why, and leave it where a person or Kubernetes looks later."""
    from platform_launch.cli.stages import conclude
    from platform_launch.record import write_record, write_termination_message

    happened, why = list(result.lines), verdict.lines() if verdict else []
    if verdict and result.first_failed == plan.topology.node_rank:
        # What the others repeat of this node's words, its own verdict says in full.
        happened = [line for line in happened if not line.startswith("  |")]
    if result.outcome is not None:
        document: dict[str, object] = {
            "exit_code": result.exit_code,
            "duration_s": round(result.outcome.duration_s, 3),
            "first_failed_node": result.first_failed,
            "why": verdict.as_dict() if verdict else None,
        }
        conclude(result.outcome, write_record(plan, document), voice)
    for line in happened:
        # Whoever interrupts a job need not be told that it failed.
        voice.say("WARN" if result.asked else "ERROR", line)
    for line in why:
        voice.error(line)
    if result.exit_code:
        write_termination_message("\n".join([*happened, *why]))


def _finish_speaking() -> None:
    """Ignore requests to end from here on: the training is over, and only its last words are left to say.

    A scheduler that sees one node fail sends SIGTERM to the others at once (srun --kill-on-bad-exit), and
    would replace this node's exit code and reason by 143 and silence.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _verdict(outcome: Outcome | None, oom_kills: int | None) -> Verdict | None:
    """Ask the log why a training failed here; one that was told to end, or has no log, is not asked."""
    if outcome is None or outcome.exit_code == 0 or outcome.stopped_by or outcome.log_path is None:
        return None
    from platform_launch.why import explain_file

    return explain_file(outcome.log_path, oom_kills)


def _findings(plan: LaunchPlan, env: Environment) -> list[Finding]:
    from platform_launch.doctor import examine
    from platform_launch.doctor.gather import gather

    return examine(gather(env, plan))
