"""The questions of ``init``, and the commands that it prints at the end."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from platform_launch import jobs
from platform_launch.errors import InputError, TopologyError, UsageError, shown
from platform_launch.hostlist import expand, refuse_repeats
from platform_launch.jobs.description import Description, Value, check
from platform_launch.jobs.job import PROGRAM, Job
from platform_launch.jobs.names import check_image, check_name, suggest_name
from platform_launch.text import Phrase, counted

KINDS = {
    "one-node": Phrase("train on this machine"),
    "several-nodes": Phrase("machines without a scheduler: start by hand or over ssh"),
    "slurm": Phrase("submit a batch script"),
    "kubernetes": Phrase("submit a manifest: Job, JobSet, Kubeflow, Volcano …"),
    "debug": Phrase("all nodes wait, and you run commands on them from node 0"),
    "check": Phrase("no job yet: test this node, or all nodes together"),
    "trouble": Phrase("a job failed, hangs or does not start: what to check"),
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
SCHEDULERS = (("sbatch", "slurm"), ("kubectl", "kubernetes"))
"""Program on PATH → the kind of job that is offered first."""

SUBMITTED = ("slurm", "kubernetes")
JOB_FILE = "job.yaml"
WITHOUT_QUESTIONS = {
    "check": (
        (Phrase("show which node of which job this is:"), "platform-launch topology"),
        (
            Phrase("show what a launch would run here, and why:"),
            "platform-launch run --print-env --script train.py",
        ),
        (
            Phrase("check this node: driver, GPUs, torch, memory, ports (--jax for JAX):"),
            "platform-launch doctor --local",
        ),
        (
            Phrase("check all nodes and their network; run it as the command of each node:"),
            "platform-launch doctor",
        ),
        (
            Phrase("train on two simulated nodes on this machine, with or without GPUs:"),
            "platform-launch simulate --nodes 2 --example ddp",
        ),
    ),
    "trouble": (
        (
            Phrase("the job failed: find the root cause over all nodes, and the fix:"),
            "platform-launch why",
        ),
        (
            Phrase("show its logs, merged from all nodes; --follow while it runs:"),
            "platform-launch logs --level WARN",
        ),
        (
            Phrase("the job hangs: show what every rank is doing now:"),
            "platform-launch inspect",
        ),
        (
            Phrase("the job does not start: run this as the command of each node:"),
            "platform-launch doctor",
        ),
    ),
}
"""Kinds that need no answers → commands to paste, each with its purpose."""


@dataclass(frozen=True)
class Question:
    """One question: its flag is the answer without a terminal.

    ``default`` None: there is no sensible one. ``is_optional``: an empty answer leaves the key out.
    """

    key: str
    flag: str
    text: str
    default: str | None = None
    is_optional: bool = False
    kind: str = ""

    def is_answered(self, given: Description) -> bool:
        """Return whether flags have answered it."""
        if self.key == _PROGRAM:
            options = given.get("options", [])
            named = any(option.startswith(("--example", "--script", "--module")) for option in options)
            return named or any(key in given for key in ("script", "module", "arguments"))
        return self.key in given

    def read(self, answer: str) -> dict[str, Value]:
        """Return the keys of a job file that an answer gives. Raises InputError if it cannot be used."""
        if self.is_optional and not answer:
            return {}
        if (self.key, self.kind) == ("name", "kubernetes"):
            check_name(answer)
        if self.key == "image":
            _check_image(answer)
        read = _SHAPES.get(self.key)
        values: dict[str, Value] = {self.key: answer} if read is None else read(answer)
        for key, value in values.items():
            check(key, value)
        return values


def questions(kind: str, directory: Path) -> list[Question]:
    """Return what may be asked for a job of this kind that is described in ``directory``."""
    ask = partial(Question, kind=kind)
    nodes = str(Job.nodes) if kind in SUBMITTED else None
    found = [
        ask("name", "--name", Phrase("Name of the job"), suggest_name(directory.resolve().name)),
        ask("nodes", "--nodes", Phrase("Number of nodes"), nodes),
        ask("gpus_per_node", "--gpus-per-node", Phrase("GPUs per node"), str(Job.gpus_per_node)),
    ]
    if kind == "slurm":
        found.append(ask("time", "--time", Phrase("Time limit, hours:minutes:seconds"), "24:00:00"))
    if kind == "kubernetes":
        text = Phrase("Container image, with platform_launch installed in it")
        found.append(ask("image", "--image", text))
        text = Phrase("What starts the launcher in it: platform-launch, or the path of its entrypoint")
        found.append(ask("entrypoint", "--entrypoint", text, PROGRAM))
    text = Phrase("What to run, as in a shell: train.py --lr 1e-4, -m pkg.train, or a command")
    found.append(ask(_PROGRAM, "--script", text))
    if kind == "kubernetes":
        text = Phrase("Volume with your data, as claim:/path or /folder/of/node:/path")
        found.append(ask("volumes", "--volume", text, "", is_optional=True))
        text = Phrase("Variable from a Secret, as NAME=SECRET:KEY")
        found.append(ask("secret_env", "--secret-env", text, "", is_optional=True))
    return found


def read_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of ``gn1,gn2`` or ``gn[1-4]``, none for an empty text. Raises InputError."""
    if not text.strip():
        return ()
    try:
        hosts = expand(text)
        refuse_repeats(hosts, "--hosts")
    except TopologyError as error:
        raise InputError(error.message, "--hosts takes a form like gn1,gn2 or gn[1-4], each once") from error
    return hosts


def count_hosts(hosts: Sequence[str], given: dict[str, Value]) -> None:
    """Make the number of nodes that of the hosts. Raises UsageError if another one was given."""
    nodes = given.setdefault("nodes", str(len(hosts))) if hosts else ""
    if hosts and nodes != str(len(hosts)):
        raise UsageError(
            Phrase(
                "--nodes {nodes} and {hosts} hosts: expected one host per node", nodes=nodes, hosts=len(hosts)
            )
        )


def file_name(target: str) -> str:
    """Return the name of the file for a target: ``slurm.sbatch``, ``jobset.yaml``."""
    return f"{target}.sbatch" if target == "slurm" else f"{target}.yaml"


def with_processes(job: Job) -> Job:
    """Return the job with as many processes as GPUs per node: without a scheduler nothing else sets them."""
    if job.has_option("--nproc-per-node") or not job.gpus_per_node:
        return job
    return replace(job, options=(*job.options, "--nproc-per-node", str(job.gpus_per_node)))


def next_commands(job: Job, kind: str, target: str | None, directory: Path) -> list[tuple[str, str]]:
    """Return what to do now: a purpose and a command that can be pasted, each."""
    if target is not None:
        file = str(directory / file_name(target))
        made_from = ["--file", str(directory / JOB_FILE), "--output", file, "--force"]
        again = ["platform-launch", "job", target, *made_from]
        submit = Phrase("submit it:")
        if target == "trainjob":
            submit = Phrase("submit it; submit it again if the TrainingRuntime was not known yet:")
        return [
            (submit, jobs.submit(target, file)),
            (Phrase("after a change of {file}:", file=JOB_FILE), shlex.join(again)),
            *((Phrase("to replace the submitted job:"), command) for command in jobs.replace(target, file)),
        ]
    start = [*job.shell_command, *job.command_arguments]
    if kind == "debug":
        nodes = counted(job.nodes, "node")
        again = [
            "dist-launch",
            "run",
            job.entrypoint,
            *job.command[len(job.program) :],
            *job.command_arguments,
        ]
        return [
            (Phrase("on each of the {nodes}, as the container command:", nodes=nodes), "dist-launch wait"),
            (Phrase("then on rank 0, as often as needed:"), shlex.join(again)),
        ]
    return [(Phrase("start it:"), shlex.join(start))]


def node_command(job: Job, rank: int, master_addr: str) -> list[str]:
    """Return the command of one node for machines without a scheduler."""
    variables = ["env", *(f"{name}={value}" for name, value in job.env)] if job.env else []
    topology = ["--nnodes", str(job.nodes), "--node-rank", str(rank), "--master-addr", master_addr]
    return [*variables, *job.shell_command, *topology, "--job-name", job.name, *job.command_arguments]


def _check_image(answer: str) -> None:
    if not answer:
        raise InputError(
            "an image is needed: the job runs in it",
            "docs/how-to/image.md shows how the launcher gets into an image",
        )
    check_image(answer)


def _program(answer: str) -> dict[str, Value]:
    """Read what to run: a Python file or module starts in each process, a command once per node."""
    try:
        words = shlex.split(answer)
    except ValueError as error:
        raise InputError(
            Phrase("{text}: {problem}", text=shown(answer), problem=error),
            "close every quote, as in a shell",
        ) from error
    if words and re.fullmatch(r"(.*/)?python[0-9.]*", words[0]):
        words = words[1:]  # the launcher starts Python itself, once per GPU
    if not words or (words[0] != "-m" and words[0].startswith("-")) or words == ["-m"]:
        raise InputError("nothing to run: expected a script, -m with a module, or a command")
    found: dict[str, Value] = {}
    if words[0] == "-m":
        found, words = {"module": words[1]}, words[2:]
    elif words[0].endswith(".py"):
        found, words = {"script": words[0]}, words[1:]
    return {**found, "arguments": words} if words else found


def _secret(answer: str) -> dict[str, Value]:
    name, separator, reference = answer.partition("=")
    if not separator:  # not repeated: it may be the secret itself
        raise InputError("expected NAME=SECRET:KEY, the place of the value in a Secret")
    return {"secret_env": {name: reference}}


_PROGRAM = "program"
_SHAPES: dict[str, Callable[[str], dict[str, Value]]] = {
    _PROGRAM: _program,
    "volumes": lambda answer: {"volumes": [answer]},
    "secret_env": _secret,
}
"""Questions whose answer is not a plain string."""
