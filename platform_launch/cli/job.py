"""``platform-launch job``: one description of a job → the file that a scheduler takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from platform_launch import jobs
from platform_launch.cli import run
from platform_launch.cli.flags import OneOf
from platform_launch.cli.job_options import description, job_options
from platform_launch.cli.job_server_check import ask
from platform_launch.cli.options import lang_option
from platform_launch.cli.output import read_text, write_new
from platform_launch.cli.run import ArgumentsAfterDashes
from platform_launch.confidential import looks_secret, secret_arguments
from platform_launch.console import Console
from platform_launch.console.languages import phrase_words
from platform_launch.errors import InputError, UsageError, shown
from platform_launch.health import quarantine
from platform_launch.jobs.advice import advice
from platform_launch.jobs.description import Value, merge, read, to_job
from platform_launch.plan.program import nothing_to_run
from platform_launch.project import project_root
from platform_launch.text import Phrase

ENTRYPOINT = "start_multinode_platform.sh"
IMAGE_ENTRYPOINT = f"/workspace/{ENTRYPOINT}"
_LONGEST_GRACE_S = 86_400
_NO_FILE = Phrase("platform-launch init writes one; or give its keys as flags (platform-launch job --help)")
_KILL_MARGIN_S = 35  # after the launcher's own grace period: its last words, the log, the launch record


@click.command("job", cls=ArgumentsAfterDashes)
@click.argument("target", metavar="TARGET", type=OneOf(list(jobs.TARGETS)))
@click.option("--file", type=click.Path(path_type=Path), help="Job file; flags win over it.")
@job_options
@click.option("--output", type=click.Path(path_type=Path), help="Write here instead of printing.")
@click.option("--force", is_flag=True, help="Write over an existing file.")
@click.option("--check", is_flag=True, help="Write nothing: is the job valid, and --output what it gives?")
@click.option(
    "--server-check", is_flag=True, help="Write nothing, submit nothing: would the cluster take it?"
)
@lang_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    target: str,
    file: Path | None,
    output: Path | None,
    force: bool,
    check: bool,
    server_check: bool,
    **flags: Any,
) -> int:
    """Print what submits a job to TARGET: a batch script, or Kubernetes YAML.

    TARGET is slurm, kubernetes, jobset, pytorchjob, trainjob, leaderworkerset, volcano or kubebrain.
    """
    flag_values = description(flags, ctx.meta["arguments"])
    told = merge(read(read_text(file, _NO_FILE), str(file)), flag_values) if file is not None else flag_values
    with said_by_flags() if file is None else nullcontext():
        job = build(target, told)
        text = jobs.render(job, target)
    console = Console()
    warn(job, target, console)
    if check:
        _check(target, text, output, console)
    if server_check:
        ask(target, text, console)
        console.info(
            Phrase(
                "submit it with: {submit} {output}",
                submit=jobs.SUBMIT[target],
                output=output or "FILE, written by --output FILE",
            )
        )
    if check or server_check:
        return 0
    if output is None:
        click.echo(text, nl=False)
    else:
        write_new(output, text, force=force)
        console.success(
            Phrase(
                "wrote {output}; submit it with: {submit} {output}", output=output, submit=jobs.SUBMIT[target]
            )
        )
    return 0


@contextmanager
def said_by_flags() -> Iterator[None]:
    """Make a UsageError of what is wrong with a job that flags describe, and no file."""
    try:
        yield
    except InputError as error:
        raise UsageError(error.message, error.hint) from error


def build(target: str, told: dict[str, Value]) -> jobs.Job:
    """Return the job, with the entrypoint's place where nobody named one and a grace period that fits."""
    from platform_launch.supervise import DEFAULT_GRACE_S

    grace_s = _launcher_options(tuple(told.get("options", [])))["grace_s"]
    if grace_s is None:
        grace_s = DEFAULT_GRACE_S
    elif not grace_s <= _LONGEST_GRACE_S:
        raise UsageError(
            Phrase(
                "--grace-period {grace_s}: expected at most {longest_s} seconds",
                grace_s=grace_s,
                longest_s=_LONGEST_GRACE_S,
            )
        )
    kill_after_s = math.ceil(grace_s) + _KILL_MARGIN_S
    place = str(project_root() / ENTRYPOINT) if target == "slurm" else IMAGE_ENTRYPOINT
    return to_job({"entrypoint": place, **_with_quarantined(told)}, kill_after_s)


def _with_quarantined(told: dict[str, Value]) -> dict[str, Value]:
    """Leave out the nodes that the quarantine file holds by now, where it can be read here."""
    file = told.get("quarantine")
    if not isinstance(file, str) or not file:
        return told
    held = [node.node for node in quarantine.read(Path(file))]
    return {**told, "exclude": list(dict.fromkeys([*told.get("exclude", []), *held]))} if held else told


def warn(job: jobs.Job, target: str, console: Console) -> None:
    """Say what the target leaves out, and what a shared file system should show but does not."""
    left_out = jobs.unused(job, target)
    if left_out:
        console.warn(
            Phrase("{target} has no place for: {left_out}", target=target, left_out=", ".join(left_out))
        )
    if target == "slurm" and not Path(job.entrypoint).is_file():
        console.warn(
            Phrase("{entrypoint} is not here: it must be on every node", entrypoint=shown(job.entrypoint))
        )
    if not job.names_program:
        console.warn(nothing_to_run().message)
    for text in advice(job, target):
        console.warn(text)
    _warn_of_secrets(job, target, console)


def _warn_of_secrets(job: jobs.Job, target: str, console: Console) -> None:
    """Name what looks like a secret in the file, never its value."""
    for name, value in job.env:
        if looks_secret(name, value):
            keep = (
                Phrase(
                    "leave it out, and set it where you call sbatch (--secret-env {name}=SECRET:KEY says so)",
                    name=name,
                )
                if target == "slurm"
                else Phrase("keep it in a Secret: --secret-env {name}=SECRET:KEY", name=name)
            )
            console.warn(
                Phrase("env {name} looks like a secret, and the file shows it: {keep}", name=name, keep=keep)
            )
    for called in secret_arguments(job.command_arguments):
        console.warn(
            Phrase(
                "{option} looks like a secret, and the file and ps show it: make it a variable "
                "(--secret-env)",
                option=called,
            )
        )


def _launcher_options(options: tuple[str, ...]) -> dict[str, Any]:
    """Parse the options as the launcher will, on every node: better refused now than there."""
    try:
        context = run.command.make_context(ENTRYPOINT, list(options), help_option_names=[])
    except (click.UsageError, UsageError) as error:
        message = error.message if isinstance(error, UsageError) else error.format_message()
        raise UsageError(
            Phrase("options {options}: {message}", options=shown(" ".join(options)), message=message),
            "platform-launch run --help lists them; each is one --option=…",
        ) from error
    return context.params


def _check(target: str, text: str, output: Path | None, console: Console) -> None:
    """Compare an existing file with what the job gives now; a difference is an InputError that shows it."""
    if output is None:
        console.success(Phrase("the job is valid for {target}", target=target))
        return
    if not output.exists():
        raise InputError(
            Phrase("there is no {output} to compare with", output=output),
            "the same command without --check writes it",
        )
    written = read_text(output)
    if written == text:
        console.success(Phrase("{output} is what this job gives", output=output))
        return
    from difflib import unified_diff

    lines = unified_diff(
        written.splitlines(),
        text.splitlines(),
        str(output),
        phrase_words("what this job gives"),
        lineterm="",
        n=1,
    )
    click.echo("\n".join(lines))
    raise InputError(
        Phrase("{output} is not what this job gives", output=output),
        "write it again with --output and --force",
    )
