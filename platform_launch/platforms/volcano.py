"""Volcano jobs, and TorchX jobs that run on Volcano, Kueue or AWS Batch.

The pytorch plugin exports RANK and WORLD_SIZE of pods; the svc and env plugins give hosts and counts for each
task, and an index that restarts in every task. Sources: volcano-sh/volcano controllers/job/plugins (svc, env,
pytorch); torchx kubernetes and kueue schedulers.
"""

from __future__ import annotations

import re

from platform_launch.environment import Environment, Sourced
from platform_launch.errors import TopologyError, shown_list
from platform_launch.hostlist import position, split_hosts
from platform_launch.platforms.base import Dialect
from platform_launch.platforms.reading import Reading, disagreement, first_host
from platform_launch.platforms.roles import LEADERS, Role, rank_by_role, training_roles
from platform_launch.text import Phrase, joined

_HOSTS = re.compile(r"VC_(.+)_HOSTS")
_NUM = re.compile(r"VC_(.+)_NUM")
_FIRST_REPLICA = re.compile(r"(VC|KUEUE)_(.+)_0_HOSTS")
_HOST_FILES = "/etc/volcano"
_KNOWN = frozenset({*LEADERS, "WORKER"})


def _refine_volcano(reading: Reading, environment: Environment) -> None:
    plugin_rank, plugin_size = reading.node_rank, reading.nnodes
    index = reading.attempt(
        "node_rank", lambda: environment.integer("VC_TASK_INDEX") or environment.integer("VK_TASK_INDEX"), ""
    )
    roles = reading.attempt("hosts", lambda: _read_roles(environment), "") or ()
    training = training_roles(roles)
    if plugin_rank is None:
        if roles:
            _rank_without_plugin(reading, environment, roles, index)
        else:
            reading.missing["nnodes"] = Phrase("VC_<TASK>_NUM or {folder}/<task>.host", folder=_HOST_FILES)
            reading.node_rank = None
    elif index and {role.name for role in training} <= _KNOWN and training:
        _check_plugin(reading, training, plugin_rank, plugin_size, index)
    _read_hosts(reading, training)
    if plugin_rank:
        reading.node_rank = plugin_rank
        reading.missing.pop("node_rank", None)


def _read_roles(environment: Environment) -> tuple[Role, ...]:
    """Return every task with its count and hosts, from variables or from the mounted host files."""
    roles = []
    for name in environment:
        number = _NUM.fullmatch(name)
        if number and f"VC_{number[1]}_HOSTS" not in environment:
            raise TopologyError(
                Phrase(
                    "{name} is set and VC_{number}_HOSTS is not: expected both for every task",
                    name=name,
                    number=number[1],
                )
            )
    for name in sorted(name for name in environment if _HOSTS.fullmatch(name)):
        task = name[len("VC_") : -len("_HOSTS")]
        hosts = split_hosts(environment[name], name)
        count = environment.integer(f"VC_{task}_NUM") or Sourced(len(hosts), name)
        roles.append(Role(task, count, hosts))
    if roles:
        return tuple(roles)
    for file in environment.file_names(_HOST_FILES):
        text = environment.read_file(f"{_HOST_FILES}/{file}") if file.endswith(".host") else None
        if text and text.strip():
            path = f"{_HOST_FILES}/{file}"
            hosts = split_hosts(text, path)
            task = file[: -len(".host")].upper().replace("-", "_")
            roles.append(Role(task, Sourced(len(hosts), path), hosts))
    return tuple(roles)


def _rank_without_plugin(
    reading: Reading, environment: Environment, roles: tuple[Role, ...], index: Sourced[int] | None
) -> None:
    """Without the pytorch plugin the task is known by this pod's own name, or when there is just one."""
    own = _own_role(environment, roles)
    if own is None and len(roles) == 1:
        own = roles[0]
    if own is None:
        names = shown_list([role.name for role in roles])
        reading.refuse(
            "node_rank",
            Phrase(
                "VC_TASK_INDEX counts from 0 in every task ({names}), and this pod's name is in no "
                "task's list",
                names=names,
            ),
            "add Volcano's pytorch plugin, which sets RANK, or pass --nnodes --node-rank --master-addr",
        )
        return
    place = position(own.hosts, environment.names_of_this_host())
    if index is None and place is not None:
        index = Sourced(place, Phrase("place of this pod among the hosts of {own}", own=own.name))
    if index is None:
        reading.missing["node_rank"] = "VC_TASK_INDEX"
    rank_by_role(reading, roles, own.name, index)
    training = training_roles(roles)
    unknown = {role.name for role in training} - _KNOWN
    if unknown and len(training) > 1:
        reading.refuse(
            "node_rank",
            Phrase("cannot tell which of the tasks {tasks} train", tasks=joined(sorted(unknown))),
        )


def _own_role(environment: Environment, roles: tuple[Role, ...]) -> Role | None:
    names = environment.names_of_this_host()
    found = [role for role in roles if position(role.hosts, names) is not None]
    return found[0] if len(found) == 1 else None


def _check_plugin(
    reading: Reading,
    training: tuple[Role, ...],
    rank: Sourced[int],
    size: Sourced[int] | None,
    index: Sourced[int],
) -> None:
    """The plugin's RANK and WORLD_SIZE must fit the tasks: masters first, then workers."""
    total = Sourced(sum(role.count.value for role in training), "the sum of VC_<TASK>_NUM")
    if size and size.value != total.value:
        reading.add_problem("nnodes", disagreement(size, total))
    offsets = [sum(role.count.value for role in training[:place]) for place in range(len(training))]
    if rank.value not in {offset + index.value for offset in offsets}:
        tasks = joined(f"{role.count.value} × {role.name}" for role in training)
        reading.refuse(
            "node_rank",
            Phrase(
                "RANK={rank} does not fit {index_source}={index} in a job of {tasks}",
                rank=rank.value,
                index_source=index.source,
                index=index.value,
                tasks=tasks,
            ),
        )


def _read_hosts(reading: Reading, training: tuple[Role, ...]) -> None:
    """Join the hosts of the training tasks, unless a task of unknown purpose makes their order a guess."""
    if not training or (len(training) > 1 and not {role.name for role in training} <= _KNOWN):
        return
    hosts = tuple(host for role in training for host in role.hosts)
    reading.hosts = Sourced(hosts, " + ".join(f"VC_{role.name}_HOSTS" for role in training))
    if reading.master_addr is None:
        reading.master_addr = Sourced(
            hosts[0], Phrase("first host of VC_{task}_HOSTS", task=training[0].name)
        )


def _refine_torchx(reading: Reading, environment: Environment) -> None:
    """TorchX bakes counts and ranks into the command it submits; only an address can be found."""
    if reading.master_addr:
        return
    replicas = sorted(name for name in environment if _FIRST_REPLICA.fullmatch(name))
    names = (*replicas, "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS")
    if any(name in environment for name in names):
        reading.master_addr = reading.attempt("master_addr", lambda: first_host(environment, names), "")


VOLCANO = Dialect(
    name="volcano",
    title="Volcano Job",
    marks=(("VC_*_HOSTS",), ("VC_*_NUM",), ("VC_TASK_INDEX",), ("VK_TASK_INDEX",)),
    nnodes=("WORLD_SIZE",),
    node_rank=("RANK",),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("NPROC_PER_NODE",),
    hint="add Volcano's svc and pytorch plugins to the job",
    refine=_refine_volcano,
)

TORCHX = Dialect(
    name="torchx",
    title="TorchX-submitted jobs",
    marks=(("TORCHX_JOB_ID",), ("TORCHX_RANK0_HOST",)),
    master_addr=("TORCHX_RANK0_HOST",),
    job_id=("TORCHX_JOB_ID",),
    hint="TorchX starts torchrun itself and exports no node rank: put macros.replica_id into the role's args",
    refine=_refine_torchx,
)
