"""``init`` for machines without a scheduler: their names, the command of each, and starting them all."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from platform_launch.cli.dialogue import Dialogue
from platform_launch.console import Console
from platform_launch.console.languages import phrase_words
from platform_launch.environment import Environment
from platform_launch.errors import InputError, TopologyError, UsageError
from platform_launch.hostlist import expand, refuse_repeats
from platform_launch.jobs.description import Value
from platform_launch.jobs.job import Job
from platform_launch.text import Phrase

_ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX")
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


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


def settle_hosts(
    hosts: tuple[str, ...] | None, told: dict[str, Value], dialogue: Dialogue
) -> tuple[str, ...]:
    """Return the hosts that were named by flag or answer, and note that there are as many nodes."""
    if hosts is None:
        question = Phrase("Hosts, as gn1,gn2 or gn[1-4], node 0 first (Enter: start each yourself)")
        hosts = read_hosts(dialogue.ask("--hosts", question, "", read_hosts))
    nodes = told.setdefault("nodes", str(len(hosts))) if hosts else ""
    if hosts and nodes != str(len(hosts)):
        raise UsageError(
            Phrase(
                "--nodes {nodes} and {hosts} hosts: expected one host a node", nodes=nodes, hosts=len(hosts)
            )
        )
    return hosts


def master_of(hosts: tuple[str, ...], env: Environment) -> str:
    """Return the address of node 0: of the first host as SSH knows it, or of this machine."""
    if not hosts:
        return env.address
    from platform_launch.dist_launch.openssh import address_of

    address = address_of(hosts[0])
    return env.address if address in _THIS_MACHINE else address


def start_or_show(
    job: Job,
    hosts: tuple[str, ...],
    master_addr: str,
    env: Environment,
    dialogue: Dialogue,
    *,
    starting: bool,
) -> int:
    """Start every node where that is asked for, and stay to its end; else print the command of each."""
    if starting or (
        hosts and dialogue.agrees(Phrase("Start it on {hosts} over ssh now?", hosts=", ".join(hosts)))
    ):
        return _start(job, hosts, master_addr, env)
    for rank in range(job.nodes):
        place = Phrase("on node {rank}:", rank=rank)
        if hosts:
            place = Phrase("on {host}, node {rank}:", host=hosts[rank], rank=rank)
        click.echo(f"# {phrase_words(place)}")
        click.echo(shlex.join(_command(job, rank, master_addr)))
    return 0


def _command(job: Job, rank: int, master_addr: str) -> list[str]:
    variables = ["env", *(f"{name}={value}" for name, value in job.env)] if job.env else []
    topology = ["--nnodes", str(job.nodes), "--node-rank", str(rank), "--master-addr", master_addr]
    named = ["--job-name", job.name]
    return [*variables, job.entrypoint, *topology, *named, *job.command_arguments]


def _start(job: Job, hosts: tuple[str, ...], master_addr: str, env: Environment) -> int:
    """Run each node's command on its host: in this folder, and with the Python environment of this shell."""
    from platform_launch.dist_launch.ssh_hosts import run_on_hosts

    active = [f"{name}={value}" for name in _ENVIRONMENTS if (value := env.get(name))][:1]
    with_environment = ["env", *active] if active else []
    commands = {
        host: shlex.join([*with_environment, *_command(job, rank, master_addr)])
        for rank, host in enumerate(hosts)
    }
    code, ending = run_on_hosts(commands, Path.cwd())
    console = Console()
    console.tell(ending)
    console.close()
    return code
