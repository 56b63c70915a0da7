"""``platform-launch init``: a few questions → job.yaml, the scheduler's file, and the next command."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Any

import click

from platform_launch import hardware, jobs
from platform_launch.cli.dialogue import Dialogue, first_found
from platform_launch.cli.flags import OneOf
from platform_launch.cli.init_hosts import master_of, read_hosts, settle_hosts, start_or_show
from platform_launch.cli.job import ENTRYPOINT, IMAGE_ENTRYPOINT, build, said_by_flags, warn
from platform_launch.cli.job_options import description, job_options
from platform_launch.cli.options import lang_option
from platform_launch.cli.output import write_new
from platform_launch.cli.run import ArgumentsAfterDashes
from platform_launch.console import Console
from platform_launch.console.languages import phrase_words
from platform_launch.environment import Environment
from platform_launch.errors import InputError, UsageError, shown
from platform_launch.jobs.description import Value, check, write
from platform_launch.jobs.names import check_name, suggest_name
from platform_launch.project import project_root
from platform_launch.text import Phrase, counted, joined

KINDS = {
    "one-node": Phrase("train on this machine"),
    "several-nodes": Phrase("machines without a scheduler: by hand, or all over ssh"),
    "slurm": Phrase("submit a batch script"),
    "kubernetes": Phrase("submit a manifest: Job, JobSet, Kubeflow, Volcano …"),
    "debug": Phrase("all nodes wait, and node 0 runs again and again on them"),
    "check": Phrase("no job yet: test this node alone, or all together"),
    "trouble": Phrase("a job failed, hangs or does not start: what to look at"),
}
TARGETS = {
    "kubernetes": Phrase("Indexed Job: plain Kubernetes"),
    "jobset": Phrase("JobSet: all nodes start again together"),
    "pytorchjob": Phrase("Kubeflow training-operator"),
    "trainjob": Phrase("Kubeflow Trainer v2"),
    "leaderworkerset": Phrase("LeaderWorkerSet"),
    "volcano": Phrase("Volcano Job"),
    "kubebrain": Phrase("KubeBrain TrainingJob"),
}
_SCHEDULERS = (("sbatch", "slurm"), ("kubectl", "kubernetes"))
_SUBMITTED = ("slurm", "kubernetes")
_JOB_FILE = "job.yaml"
# What needs no answers: commands that can be pasted, each with what it is for.
_WITHOUT_QUESTIONS = {
    "check": (
        (Phrase("which node of which job the variables here say this is:"), "platform-launch topology"),
        (
            Phrase("what a launch would run here, and why, without running it:"),
            "platform-launch run --print-env",
        ),
        (
            Phrase("this node alone: driver, GPUs, torch, memory, ports (--jax for JAX):"),
            "platform-launch doctor --local",
        ),
        (
            Phrase("all nodes together, as each node's command: network, collectives:"),
            "platform-launch doctor",
        ),
        (Phrase("two nodes that train on this machine, GPUs or not:"), "platform-launch simulate --nodes 2"),
    ),
    "trouble": (
        (
            Phrase("the newest launch failed: the first cause over all nodes, and its fix:"),
            "platform-launch why",
        ),
        (Phrase("its logs, all nodes in one; --follow while it runs:"), "platform-launch logs --level WARN"),
        (Phrase("it runs and does nothing: what every rank is doing now:"), "platform-launch inspect"),
        (
            Phrase("it does not start: variables, driver, network, as each node's command:"),
            "platform-launch doctor",
        ),
    ),
}


@click.command("init", cls=ArgumentsAfterDashes)
@click.option(
    "--kind",
    type=OneOf(list(KINDS)),
    help="Where the job runs; check and trouble: no job, but what to look at.",
)
@click.option("--target", type=OneOf(list(TARGETS)), help="With --kind kubernetes: what runs it.")
@job_options
@click.option(
    "--hosts",
    metavar="HOSTS",
    callback=lambda _ctx, _option, text: None if text is None else read_hosts(text),
    help="With --kind several-nodes: gn1,gn2 or gn[1-4], node 0 first, as ssh knows them.",
)
@click.option(
    "--start", "starting", is_flag=True, help="With --hosts: start it on all of them over ssh, and stay."
)
@click.option(
    "--master-addr",
    metavar="HOST",
    help="With --kind several-nodes: node 0 (default: the first host, or this machine).",
)
@click.option(
    "--directory", type=click.Path(path_type=Path, file_okay=False), default=".", help="Write here."
)
@click.option("--force", is_flag=True, help="Write over existing files.")
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
    """Ask what a job needs, write job.yaml and the file that submits it, and say the next command.

    Every answer has a flag; what can be detected is not asked.
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
                    "{flag} belongs to --kind {of_kind}, not to {kind}", flag=flag, of_kind=of_kind, kind=kind
                )
            )
    if kind is None:
        scheduler = first_found(_SCHEDULERS, env.get("PATH"))
        kind = dialogue.choose(
            "--kind", Phrase("Where does the job run?"), KINDS, scheduler if dialogue.open else None
        )
    if kind in _WITHOUT_QUESTIONS:
        for purpose, line in _WITHOUT_QUESTIONS[kind]:
            click.echo(f"# {phrase_words(purpose)}\n{line}")
        return 0
    told = description(flags, ctx.meta["arguments"])
    target = _target(kind, target, dialogue)
    hosts = settle_hosts(hosts, told, dialogue) if kind == "several-nodes" else ()
    if starting and not hosts:
        raise UsageError("--start without --hosts: expected the hosts to start it on, as gn1,gn2 or gn[1-4]")
    _complete(told, kind, directory, env, dialogue)
    dialogue.settle()
    _write(told, target, directory, force, dialogue)
    if kind != "several-nodes":
        for line in _next(told, kind, target, directory):
            click.echo(line)
        return 0
    job = build("slurm", told)
    return start_or_show(job, hosts, master_addr or master_of(hosts, env), env, dialogue, starting=starting)


def _target(kind: str, target: str | None, dialogue: Dialogue) -> str | None:
    """Return what renders this kind of job; None where no scheduler takes a file."""
    if kind == "kubernetes":
        return target or dialogue.choose("--target", Phrase("What runs it there?"), TARGETS, "kubernetes")
    return "slurm" if kind == "slurm" else None


def _complete(
    told: dict[str, Value], kind: str, directory: Path, env: Environment, dialogue: Dialogue
) -> None:
    """Add to what was said by flag: first what this machine shows, then what somebody answers."""
    if "gpus_per_node" not in told:
        gpus = len(hardware.detect(env).gpus.devices)
        # A login machine may have none while its nodes do; where this machine is a node, none is none.
        if gpus or kind not in _SUBMITTED:
            told["gpus_per_node"] = str(gpus)
            dialogue.say(Phrase("GPUs per node: {gpus}, as on this machine (--gpus-per-node)", gpus=gpus))
    if kind == "one-node":
        told.setdefault("nodes", "1")
    if kind != "kubernetes":
        told.setdefault("entrypoint", str(project_root() / ENTRYPOINT))
    for key, question, default in _questions(kind, directory):
        if key not in told:
            flag = f"--{key.replace('_', '-')}"
            fits = check_name if (key, kind) == ("name", "kubernetes") else partial(check, key)
            told[key] = dialogue.ask(flag, question, default, fits)
    for key, question, flag in _optional_questions(kind):
        if key not in told:
            answer = dialogue.ask(
                flag, Phrase("{question} (Enter: none)", question=question), "", partial(_check_optional, key)
            )
            if answer:
                told[key] = _optional(key, answer)


def _optional_questions(kind: str) -> list[tuple[str, str, str]]:
    """Return key, question and flag of what a job may do without."""
    questions: list[tuple[str, str, str]] = [
        (
            "script",
            Phrase("Your training script, where the job sees it"),
            "--script",
        ),
        ("arguments", Phrase("Arguments of the script, or a command"), "--"),
    ]
    if kind == "kubernetes":
        questions += [
            ("volumes", Phrase("Volume with your data, as claim:/path or /folder/of/node:/path"), "--volume"),
            ("secret_env", Phrase("Variable out of a Secret, as NAME=SECRET:KEY"), "--secret-env"),
        ]
    return questions


def _optional(key: str, answer: str) -> Value:
    """Return an answer in the form of a job file. Raises InputError where it cannot be read."""
    if key == "arguments":
        try:
            return shlex.split(answer)
        except ValueError as error:
            raise InputError(
                Phrase("arguments {text}: {problem}", text=shown(answer), problem=error),
                "close every quote, as in a shell",
            ) from error
    if key == "volumes":
        return [answer]
    if key == "secret_env":
        name, separator, reference = answer.partition("=")
        if not separator:  # not repeated: it may be the secret itself
            raise InputError("expected NAME=SECRET:KEY, the place of the value in a Secret")
        return {name: reference}
    return answer


def _check_optional(key: str, answer: str) -> None:
    if answer:
        check(key, _optional(key, answer))


def _questions(kind: str, directory: Path) -> list[tuple[str, str, str | None]]:
    """Return key, question and default of all that may be asked; None: there is no sensible default."""
    questions: list[tuple[str, str, str | None]] = [
        ("name", Phrase("Name of the job"), suggest_name(directory.resolve().name)),
        ("nodes", Phrase("Number of nodes"), str(jobs.Job.nodes) if kind in _SUBMITTED else None),
        ("gpus_per_node", Phrase("GPUs per node"), str(jobs.Job.gpus_per_node)),
    ]
    if kind == "slurm":
        questions.append(("time", Phrase("Time limit, hours:minutes:seconds"), "24:00:00"))
    if kind == "kubernetes":
        questions.append(("image", Phrase("Container image with this project"), None))
        questions.append(
            ("entrypoint", Phrase("Where {entrypoint} lies in it", entrypoint=ENTRYPOINT), IMAGE_ENTRYPOINT)
        )
    return questions


def _write(
    told: dict[str, Value], target: str | None, directory: Path, force: bool, dialogue: Dialogue
) -> None:
    """Check and show everything first, then write.

    What exists is written over after a yes, as somebody's answers would be lost otherwise, or by ``force``.
    """
    with said_by_flags():
        job = build(target or "slurm", told)
        files = {_JOB_FILE: write(told)}
        if target is not None:
            files[file_name(target)] = jobs.render(job, target)
    files = {name: text for name, text in files.items() if not _stands_in(directory / name, text)}
    standing = [str(directory / name) for name in files if not force and (directory / name).exists()]
    if standing and not dialogue.asked:
        raise UsageError(
            Phrase("{path} exists: expected a new file", path=", ".join(standing)),
            "choose another --directory, or add --force",
        )
    console = Console()
    if target is not None:
        warn(job, target, console)
    if dialogue.asked:
        for name, text in files.items():
            dialogue.say(f"\n--- {directory / name}\n{text}")
    if standing and not dialogue.agrees(Phrase("Write over {files}?", files=joined(standing))):
        raise click.Abort
    if files and not standing:
        dialogue.confirm(Phrase("Write {files}?", files=joined(files)))
    for name, text in files.items():
        write_new(directory / name, text, force=force or bool(standing))
        console.success(Phrase("wrote {path}", path=directory / name))


def _stands_in(path: Path, text: str) -> bool:
    """Tell whether a file has this text already, as when the same command is given again."""
    try:
        return path.read_text("utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False


def file_name(target: str) -> str:
    """Return the name of the file for a target: ``slurm.sbatch``, ``jobset.yaml``."""
    return f"{target}.sbatch" if target == "slurm" else f"{target}.yaml"


def _next(told: dict[str, Value], kind: str, target: str | None, directory: Path) -> list[str]:
    """Return what to do now, as comments and commands that can be pasted."""
    if target is not None:
        file = str(directory / file_name(target))
        submit = f"{jobs.SUBMIT[target]} {shlex.quote(file)}"
        made_from = ["--file", str(directory / _JOB_FILE), "--output", file, "--force"]
        again = ["platform-launch", "job", target, *made_from]
        changed = Phrase("after a change of {file}:", file=_JOB_FILE)
        return [_comment(Phrase("submit it:")), submit, _comment(changed), shlex.join(again)]
    job = build("slurm", told)
    entry = [job.entrypoint]
    if kind == "debug":
        return [
            _comment(
                Phrase("on each of the {nodes}, as the container command:", nodes=counted(job.nodes, "node"))
            ),
            "dist-launch wait",
            _comment(Phrase("then on rank 0, as often as you like:")),
            shlex.join(["dist-launch", "run", *entry, *job.command_arguments]),
        ]
    return [_comment(Phrase("start it:")), shlex.join([*entry, *job.command_arguments])]


def _comment(text: Phrase) -> str:
    return f"# {phrase_words(text)}"
