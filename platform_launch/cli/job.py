"""``platform-launch job``: one description of a job → the file that a scheduler accepts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from platform_launch import jobs
from platform_launch.cli import run
from platform_launch.cli.job_options import description, job_options
from platform_launch.cli.job_server_check import ask
from platform_launch.cli.options import lang_option
from platform_launch.cli.output import read_text, write_new
from platform_launch.cli.run import ArgumentsAfterDashes
from platform_launch.console import Console
from platform_launch.console.languages import translate
from platform_launch.errors import InputError, UsageError, shown
from platform_launch.jobs import advice, patch
from platform_launch.jobs.build import ENTRYPOINT, build
from platform_launch.jobs.description import Description, merge, read
from platform_launch.text import Phrase

_NO_FILE = Phrase("platform-launch init writes one; or give its keys as flags (platform-launch job --help)")


class _Target(click.Choice[str]):
    """A target; another name is reported with what to do on a platform of that name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        jobs.check_target(value)
        return super().convert(value, param, ctx)


@click.command("job", cls=ArgumentsAfterDashes)
@click.argument("target", metavar="TARGET", type=_Target(list(jobs.TARGETS)))
@click.option("--file", type=click.Path(path_type=Path), help="Job file; flags override it.")
@job_options
@click.option("--output", type=click.Path(path_type=Path), help="Write here instead of printing.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--check", is_flag=True, help="Validate only; with --output, compare with that file.")
@click.option("--server-check", is_flag=True, help="Validate with the cluster; submit nothing.")
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
    All options of `platform-launch run` are options of this command too, and so are its three forms:
    --script FILE, --module NAME, and -- COMMAND.
    """
    flag_values = description(flags, ctx)
    given = (
        merge(read(read_text(file, _NO_FILE), str(file)), flag_values) if file is not None else flag_values
    )
    with from_flags() if file is None else nullcontext():
        job = job_of(target, given)
        text = jobs.render(job, target)
    console = Console()
    report(job, target, console)
    if check:
        _check(target, text, output, console)
    if server_check:
        ask(target, text, console)
        submit = jobs.submit(target, str(output or "FILE"))
        console.info(
            Phrase("submit it with: {command}", command=submit)
            if output
            else Phrase("write it with --output FILE, and submit it with: {command}", command=submit)
        )
    if check or server_check:
        return 0
    if output is None:
        click.echo(text, nl=False)
    else:
        write_new(output, text, force=force)
        console.success(Phrase("wrote {output}", output=output))
        for step in jobs.next_steps(target, str(output)):
            console.info(step)
    return 0


@contextmanager
def from_flags() -> Iterator[None]:
    """Raise errors in the job as UsageError, because flags describe it and not a file."""
    try:
        yield
    except InputError as error:
        raise UsageError(error.message, error.hint) from error


def job_of(target: str, given: Description) -> jobs.Job:
    """Return the job of a description. Its launcher options are parsed here as on every node."""
    from platform_launch.supervise import DEFAULT_GRACE_S

    grace_s = _launcher_options(tuple(given.get("options", [])))["grace_s"]
    file = given.get("patch")
    patched = patch.read(read_text(Path(file)), file) if isinstance(file, str) else None
    return build(given, target, DEFAULT_GRACE_S if grace_s is None else grace_s, patched)


def report(job: jobs.Job, target: str, console: Console) -> None:
    """Print the defaults chosen for the job, and warnings to consider before it is submitted."""
    for text in advice.defaults(job, target):
        console.info(text)
    for text in advice.warnings(job, target):
        console.warn(text)


def _launcher_options(options: tuple[str, ...]) -> dict[str, Any]:
    """Parse the options as the launcher will on every node, to reject wrong ones now."""
    try:
        context = run.command.make_context(ENTRYPOINT, list(options), help_option_names=[])
    except (click.UsageError, UsageError) as error:
        message = error.message if isinstance(error, UsageError) else error.format_message()
        raise UsageError(
            Phrase("options {options}: {message}", options=shown(" ".join(options)), message=message),
            "platform-launch run --help lists them",
        ) from error
    return context.params


def _check(target: str, text: str, output: Path | None, console: Console) -> None:
    """Compare an existing file with the job's text; print differences. Raises InputError if there are any."""
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
        console.success(Phrase("{output} is up to date with this job", output=output))
        return
    from difflib import unified_diff

    lines = unified_diff(
        written.splitlines(),
        text.splitlines(),
        str(output),
        translate("this job"),
        lineterm="",
        n=1,
    )
    click.echo("\n".join(lines))
    raise InputError(
        Phrase("{output} differs from this job", output=output),
        "write it again with --output and --force",
    )
