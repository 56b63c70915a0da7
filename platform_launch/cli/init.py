"""``platform-launch init``: asks a few questions, then writes job.yaml and the scheduler's file."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from platform_launch import hardware, jobs
from platform_launch.cli.dialogue import Dialogue, first_found
from platform_launch.cli.job import from_flags, job_of, report
from platform_launch.cli.job_options import description, job_options
from platform_launch.cli.options import lang_option
from platform_launch.cli.output import write_new
from platform_launch.cli.run import ArgumentsAfterDashes
from platform_launch.console import Console, languages
from platform_launch.console.languages import translate
from platform_launch.environment import Environment
from platform_launch.errors import UsageError
from platform_launch.jobs import questions
from platform_launch.jobs.description import Value, write
from platform_launch.jobs.questions import JOB_FILE, KINDS, SUBMITTED, TARGETS
from platform_launch.text import Phrase, joined

_ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX")
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


@click.command("init", cls=ArgumentsAfterDashes)
@click.option(
    "--kind",
    type=click.Choice(list(KINDS)),
    help="Where the job runs. check and trouble write no job; they list commands to try.",
)
@click.option("--target", type=click.Choice(list(TARGETS)), help="With --kind kubernetes: what runs it.")
@job_options
@click.option(
    "--hosts",
    metavar="HOSTS",
    callback=lambda _ctx, _option, text: None if text is None else questions.read_hosts(text),
    help="With --kind several-nodes: SSH host names, node 0 first, e.g. gn1,gn2 or gn[1-4].",
)
@click.option("--start", "starting", is_flag=True, help="With --hosts: start the job on all hosts over SSH.")
@click.option(
    "--master-addr",
    metavar="HOST",
    help="With --kind several-nodes: node 0 (default: the first host, or this machine).",
)
@click.option(
    "--directory", type=click.Path(path_type=Path, file_okay=False), default=".", help="Write here."
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@lang_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    kind: str | None,
    target: str | None,
    hosts: tuple[str, ...] | None,
    starting: bool,
    master_addr: str | None,
    directory: Path,
    force: bool,
    **flags: Any,
) -> int:
    """Ask what a job needs, write job.yaml and the file that submits it, and print the next command.

    Every question has a flag. What can be detected is not asked.
    """
    env = Environment.of_this_process()
    dialogue = Dialogue()
    for flag, value, of_kind in (
        ("--target", target, "kubernetes"),
        ("--hosts", hosts, "several-nodes"),
        ("--start", starting or None, "several-nodes"),
        ("--master-addr", master_addr, "several-nodes"),
    ):
        if value is not None and (kind := kind or of_kind) != of_kind:
            raise UsageError(
                Phrase(
                    "{flag} works only with --kind {of_kind}, not with {kind}",
                    flag=flag,
                    of_kind=of_kind,
                    kind=kind,
                )
            )
    if kind is None:
        scheduler = first_found(questions.SCHEDULERS, env.get("PATH"))
        kind = dialogue.choose(
            "--kind", Phrase("Where does the job run?"), KINDS, scheduler if dialogue.open else None
        )
    if kind in questions.WITHOUT_QUESTIONS:
        _show(questions.WITHOUT_QUESTIONS[kind])
        return 0
    given = description(flags, ctx)
    gives_gpus = "gpus_per_node" in given
    target = _target(kind, target, dialogue)
    hosts = _hosts(hosts, given, dialogue) if kind == "several-nodes" else ()
    if starting and not hosts:
        raise UsageError("--start without --hosts: expected the hosts to start it on, as gn1,gn2 or gn[1-4]")
    _complete(given, kind, directory, env, dialogue)
    dialogue.require_answers()
    _write(given, target, directory, force, dialogue)
    with from_flags():
        job = job_of(target or "slurm", given)
    if gives_gpus and target is None:
        job = questions.with_processes(job)
    if kind != "several-nodes":
        _show(questions.next_commands(job, kind, target, directory))
        return 0
    return _start_or_show(job, hosts, master_addr or _master_of(hosts, env), env, dialogue, starting=starting)


def _target(kind: str, target: str | None, dialogue: Dialogue) -> str | None:
    """Return the target that renders this kind of job; None without a scheduler."""
    if kind == "kubernetes":
        return target or dialogue.choose("--target", Phrase("What runs it there?"), TARGETS, "kubernetes")
    return "slurm" if kind == "slurm" else None


def _hosts(hosts: tuple[str, ...] | None, given: dict[str, Value], dialogue: Dialogue) -> tuple[str, ...]:
    """Return the hosts from the flag or an answer, and set the number of nodes."""
    if hosts is None:
        question = Phrase("Hosts, as gn1,gn2 or gn[1-4], node 0 first (Enter: start each yourself)")
        hosts = questions.read_hosts(dialogue.ask("--hosts", question, "", questions.read_hosts))
    questions.count_hosts(hosts, given)
    return hosts


def _complete(
    given: dict[str, Value], kind: str, directory: Path, env: Environment, dialogue: Dialogue
) -> None:
    """Complete the flags: first with what this machine has, then with answers."""
    if "gpus_per_node" not in given:
        gpus = len(hardware.detect(env).gpus.devices)
        # A login machine may have no GPUs although its nodes do; a machine that runs the job has what it has.
        if gpus or kind not in SUBMITTED:
            given["gpus_per_node"] = str(gpus)
            dialogue.print(Phrase("GPUs per node: {gpus}, as on this machine (--gpus-per-node)", gpus=gpus))
    if kind == "one-node":
        given.setdefault("nodes", "1")
    for question in questions.questions(kind, directory):
        if question.is_answered(given):
            continue
        text = (
            Phrase("{question} (Enter: none)", question=question.text)
            if question.is_optional
            else question.text
        )
        answer = dialogue.ask(question.flag, text, question.default, question.read)
        if answer:  # empty without a terminal: all missing answers are reported at once
            given |= question.read(answer)


def _write(
    given: dict[str, Value], target: str | None, directory: Path, force: bool, dialogue: Dialogue
) -> None:
    """Check and show everything first, then write.

    Existing files are overwritten with ``force``, or after a yes: the user's answers would be lost otherwise.
    """
    with from_flags():
        job = job_of(target or "slurm", given)
        files = {JOB_FILE: write(given)}
        if target is not None:
            files[questions.file_name(target)] = jobs.render(job, target)
    files = {name: text for name, text in files.items() if not _is_written(directory / name, text)}
    existing = [str(directory / name) for name in files if not force and (directory / name).exists()]
    if existing and not dialogue.asked:
        raise UsageError(
            Phrase("{path} exists: expected a new file", path=joined(existing)),
            "choose another --directory, or add --force",
        )
    console = Console()
    if target is not None:
        report(job, target, console)
    if dialogue.asked:
        for name, text in files.items():
            dialogue.show(f"\n--- {directory / name}\n{text}")
    if existing and not dialogue.agrees(Phrase("Overwrite {files}?", files=joined(existing))):
        raise click.Abort
    if files and not existing:
        dialogue.confirm(Phrase("Write {files}?", files=joined(files)))
    for name, text in files.items():
        write_new(directory / name, text, force=force or bool(existing))
        console.success(Phrase("wrote {path}", path=directory / name))


def _is_written(path: Path, text: str) -> bool:
    """Return whether a file has this text already, e.g. because the command was run before."""
    try:
        return path.read_text("utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False


def _show(commands: Iterable[tuple[str, str]]) -> None:
    """Print commands that can be pasted, each below its purpose."""
    for purpose, line in commands:
        click.echo(f"# {translate(purpose)}\n{line}")


def _master_of(hosts: tuple[str, ...], env: Environment) -> str:
    """Return the address of node 0: that of the first host in SSH's configuration, or of this machine."""
    if not hosts:
        return env.address
    from platform_launch.dist_launch.openssh import address_of

    address = address_of(hosts[0])
    return env.address if address in _THIS_MACHINE else address


def _start_or_show(
    job: jobs.Job,
    hosts: tuple[str, ...],
    master_addr: str,
    env: Environment,
    dialogue: Dialogue,
    *,
    starting: bool,
) -> int:
    """Start all nodes and wait for them if asked to; otherwise print the command of each."""
    commands = [questions.node_command(job, rank, master_addr) for rank in range(job.nodes)]
    if starting or (
        hosts and dialogue.agrees(Phrase("Start it on {hosts} over ssh now?", hosts=joined(hosts)))
    ):
        return _start(dict(zip(hosts, commands, strict=True)), env)
    for rank, line in enumerate(commands):
        place = Phrase("on node {rank}:", rank=rank)
        if hosts:
            place = Phrase("on {host}, node {rank}:", host=hosts[rank], rank=rank)
        _show([(place, shlex.join(line))])
    return 0


def _start(commands: dict[str, list[str]], env: Environment) -> int:
    """Run each host's command: in this folder, with this shell's Python environment, in this language."""
    from platform_launch.dist_launch.ssh_hosts import run_on_hosts

    active = [f"{name}={value}" for name in _ENVIRONMENTS if (value := env.get(name))][:1]
    variables = (f"{languages.VARIABLE}={languages.current()}", *active)
    lines = {host: shlex.join(["env", *variables, *words]) for host, words in commands.items()}
    code, ending = run_on_hosts(lines, Path.cwd())
    console = Console()
    console.report(ending)
    console.close()
    return code
