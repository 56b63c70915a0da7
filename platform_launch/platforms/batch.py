"""Batch systems that only provide a list of hosts, in which each node must find itself: LSF, PBS, Cobalt.

The list repeats a host once per slot, so nodes are its distinct hosts in order of appearance.
Sources: IBM "Environment variables set for job execution"; Lightning's lsf.py; public users of PBS_NODENUM
and COBALT_NODEFILE.
"""

from __future__ import annotations

import re

from platform_launch.environment import Environment, Sourced
from platform_launch.errors import TopologyError, shown, shown_list
from platform_launch.hostlist import parse_host, position, short_name, split_host_port
from platform_launch.platforms.base import Dialect
from platform_launch.platforms.ports import set_derived_port
from platform_launch.platforms.reading import Reading
from platform_launch.text import Phrase

Hosts = Sourced[tuple[str, ...]]

_LAUNCH_NODE = re.compile(r"(batch|login|launch)[0-9-]*", re.IGNORECASE)


def read_host_file(environment: Environment, variable: str) -> Hosts | None:
    """Return the distinct hosts of the hostfile a variable names.

    Raises TopologyError when the variable is set and the file cannot be read or is empty.
    """
    path = environment.text(variable)
    if path is None:
        return None
    text = environment.read_file(path.value)
    hosts = [host for host, _ in parse_hostfile(text or "", variable)]
    if not hosts:
        state = Phrase("cannot be read") if text is None else Phrase("is empty")
        raise TopologyError(
            Phrase(
                "{variable}={path}: this file {state} on this node",
                variable=variable,
                path=shown(path.value),
                state=state,
            ),
            "some systems write it on the first node only: pass --nnodes --node-rank --master-addr",
        )
    return Sourced(_distinct(hosts, variable), variable)


def parse_hostfile(text: str, source: str) -> tuple[tuple[str, int | None], ...]:
    """Read lines ``host``, ``host slots=8`` (Open MPI) or ``host:8`` (MPICH); ``#`` starts a comment."""
    entries: list[tuple[str, int | None]] = []
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        host, count = split_host_port(words[0], source)
        options = [word.partition("=")[2] for word in words[1:] if word.startswith("slots=")]
        slots = count or (options[0] if options else "")
        entries.append((host, int(slots) if re.fullmatch(r"[0-9]{1,6}", slots) else None))
    return tuple(entries)


def lsf_hosts(environment: Environment) -> Hosts | None:
    """Return LSF's compute hosts; a batch or login node at the head of the list runs no tasks."""
    hosts = _lsf_all_hosts(environment)
    if hosts is None or len(hosts.value) < 2:
        return hosts
    head = hosts.value[0]
    tasks = environment.get("JSM_NAMESPACE_SIZE", "").strip()
    if _LAUNCH_NODE.fullmatch(short_name(head)) or tasks == str(len(hosts.value) - 1):
        return Sourced(
            hosts.value[1:], Phrase("{source} without launch node {head}", source=hosts.source, head=head)
        )
    return hosts


def _lsf_all_hosts(environment: Environment) -> Hosts | None:
    pairs = environment.text("LSB_MCPU_HOSTS")
    if pairs:
        words = pairs.value.split()
        if len(words) % 2 or not all(word.isascii() and word.isdigit() for word in words[1::2]):
            raise TopologyError(
                Phrase("LSB_MCPU_HOSTS={pairs}: expected a form like h1 8 h2 8", pairs=shown(pairs.value))
            )
        return Sourced(_distinct(words[::2], pairs.source), pairs.source)
    slots = environment.text("LSB_HOSTS")
    if slots:
        return Sourced(_distinct(slots.value.split(), slots.source), slots.source)
    files = ("LSB_DJOB_HOSTFILE", "LSB_DJOB_RANKFILE")
    return next((read_host_file(environment, name) for name in files if name in environment), None)


def _distinct(hosts: list[str], source: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(parse_host(host, source) for host in hosts))


def rank_in_list(reading: Reading, environment: Environment, hosts: Hosts | None) -> None:
    """Read nodes, address and own rank from the list; if this node is not in it, report that."""
    if hosts is None:
        return
    reading.hosts = hosts
    reading.nnodes = reading.nnodes or Sourced(
        len(hosts.value), Phrase("distinct hosts of {source}", source=hosts.source)
    )
    reading.master_addr = reading.master_addr or Sourced(
        hosts.value[0], Phrase("first host of {source}", source=hosts.source)
    )
    names = environment.names_of_this_host() | reading.own_names
    place = position(hosts.value, names)
    if place is not None:
        reading.node_rank = Sourced(
            place, Phrase("place of {host} in {source}", host=hosts.value[place], source=hosts.source)
        )
    elif reading.node_rank is None:
        reading.refuse(
            "node_rank",
            Phrase(
                "this node ({names}) is not in {source} ({list})",
                names=shown_list(sorted(names)),
                source=hosts.source,
                list=shown_list(hosts.value),
            ),
            "pass --node-rank, or set HOSTNAME to this node's name in the list",
        )


def warn_script_body(reading: Reading, start: str) -> None:
    """Warn on the first host: a job script runs there once, and looks like node 0 of a started job."""
    if reading.nnodes and reading.nnodes.value > 1 and reading.node_rank and reading.node_rank.value == 0:
        reading.warnings.append(
            Phrase(
                "if this is the job script itself, no other node will join: start it on every node with "
                "{start}",
                start=start,
            )
        )


def _refine_lsf(reading: Reading, environment: Environment) -> None:
    hosts = reading.attempt("nnodes", lambda: lsf_hosts(environment), "LSB_MCPU_HOSTS or LSB_DJOB_HOSTFILE")
    rank_in_list(reading, environment, hosts)
    set_derived_port(reading, reading.job_id)
    task = reading.attempt("node_rank", lambda: environment.integer("JSM_NAMESPACE_RANK"), "")
    if task is None:
        warn_script_body(reading, "blaunch or jsrun -r 1")
    elif reading.node_rank and reading.node_rank.value != task.value:
        reading.refuse(
            "node_rank",
            Phrase(
                "JSM_NAMESPACE_RANK={task}, but {rank_source} is {rank}",
                task=task.value,
                rank_source=reading.node_rank.source,
                rank=reading.node_rank.value,
            ),
            "start one task per node in the order of the hosts: jsrun -r 1 -a 1; or pass --node-rank",
        )


def _refine_pbs(reading: Reading, environment: Environment) -> None:
    number = reading.node_rank  # PBS_NODENUM
    reading.node_rank = None if "HOSTNAME" in environment else number
    hosts = reading.attempt("nnodes", lambda: read_host_file(environment, "PBS_NODEFILE"), "PBS_NODEFILE")
    rank_in_list(reading, environment, hosts)
    reading.node_rank = reading.node_rank or (number if hosts is None else None)
    set_derived_port(reading, reading.job_id)
    if number and number.value and reading.node_rank and reading.node_rank.value != number.value:
        reading.refuse(
            "node_rank",
            Phrase(
                "{rank_source} is {rank}, but PBS_NODENUM is {number}",
                rank_source=reading.node_rank.source,
                rank=reading.node_rank.value,
                number=number.value,
            ),
        )
    warn_script_body(reading, "pbsdsh, or mpiexec with one process per node")


def _refine_cobalt(reading: Reading, environment: Environment) -> None:
    hosts = reading.attempt(
        "hosts", lambda: read_host_file(environment, "COBALT_NODEFILE"), "COBALT_NODEFILE"
    )
    rank_in_list(reading, environment, hosts)
    set_derived_port(reading, reading.job_id)
    warn_script_body(reading, "mpirun --hostfile $COBALT_NODEFILE with one process per node")


LSF = Dialect(
    name="lsf",
    title="IBM LSF",
    marks=(("LSB_JOBID",), ("LSB_MCPU_HOSTS",), ("LSB_HOSTS",), ("LSB_DJOB_HOSTFILE",)),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("NPROC_PER_NODE",),
    job_id=("LSB_JOBID",),
    hint="start it on every host with blaunch or jsrun -r 1",
    refine=_refine_lsf,
)

PBS = Dialect(
    name="pbs",
    title="PBS Pro, OpenPBS, Torque",
    grade="B",
    marks=(("PBS_JOBID",), ("PBS_NODEFILE",)),
    node_rank=("PBS_NODENUM",),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("NPROC_PER_NODE",),
    job_id=("PBS_JOBID",),
    hint="start it on every node with pbsdsh or mpiexec, one process per node",
    refine=_refine_pbs,
)

COBALT = Dialect(
    name="cobalt",
    title="Cobalt (ALCF)",
    grade="B",
    marks=(("COBALT_JOBID",), ("COBALT_NODEFILE",)),
    nnodes=("COBALT_JOBSIZE",),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("NPROC_PER_NODE",),
    job_id=("COBALT_JOBID",),
    hint="start it with mpirun --hostfile $COBALT_NODEFILE, one process per node",
    refine=_refine_cobalt,
)
