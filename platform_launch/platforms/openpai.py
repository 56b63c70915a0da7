"""Microsoft OpenPAI (unrelated to Alibaba's PAI): task roles, reserved ports, shared host addresses.

Source: microsoft/pai docs how-to-use-advanced-job-settings. Role names keep their case inside variables.
"""

from __future__ import annotations

from platform_launch.environment import Environment, Sourced, parse_port
from platform_launch.errors import TopologyError, shown
from platform_launch.platforms.base import Dialect
from platform_launch.platforms.reading import Reading, first_host
from platform_launch.platforms.roles import Role, rank_by_role, training_roles
from platform_launch.text import Phrase


def _refine(reading: Reading, environment: Environment) -> None:
    index = reading.node_rank
    roles = reading.attempt("nnodes", lambda: _roles(environment), "PAI_TASK_ROLE_LIST")
    if roles is None:
        return
    own = environment.text("PAI_CURRENT_TASK_ROLE_NAME")
    if own is None:
        reading.node_rank = None
        reading.missing["node_rank"] = "PAI_CURRENT_TASK_ROLE_NAME"
    else:
        rank_by_role(reading, roles, own.value, index)
        reading.nproc_per_node = reading.accelerators = _gpus(environment, own.value)
    training = training_roles(roles)
    if not training:
        return
    head = training[0].name
    reading.master_addr = reading.attempt(
        "master_addr", lambda: first_host(environment, (f"PAI_HOST_IP_{head}_0",)), f"PAI_HOST_IP_{head}_0"
    )
    reading.master_port = reading.attempt("master_port", lambda: _reserved_port(environment, head), "")
    reading.hosts = reading.attempt("hosts", lambda: _hosts(environment, training), "")


def _roles(environment: Environment) -> tuple[Role, ...] | None:
    text = environment.text("PAI_TASK_ROLE_LIST")
    if text is None:
        return None
    names = [name.strip() for name in text.value.split(",") if name.strip()]
    counts = {name: environment.integer(f"PAI_TASK_ROLE_TASK_COUNT_{name}", 1) for name in names}
    unknown = [name for name, count in counts.items() if count is None]
    if unknown:
        raise TopologyError(
            Phrase(
                "PAI_TASK_ROLE_LIST names {unknown}, but not PAI_TASK_ROLE_TASK_COUNT_<role>",
                unknown=shown(unknown[0]),
            )
        )
    return tuple(Role(name, count) for name, count in counts.items() if count) or None


def _gpus(environment: Environment, role: str) -> Sourced[int] | None:
    """Return the first field of ``gpu,cpu,memMB,shmMB``; None without GPUs."""
    name = f"PAI_RESOURCE_{role}"
    gpus = environment.get(name, "").split(",")[0].strip()
    counted = gpus.isascii() and gpus.isdigit() and len(gpus) <= 4 and int(gpus)
    return Sourced(int(gpus), Phrase("first field of {name}", name=name)) if counted else None


def _reserved_port(environment: Environment, role: str) -> Sourced[int] | None:
    """Return a port reserved on node 0's host: one the job asked for, else "http"; never sshd's."""
    prefix = f"PAI_PORT_LIST_{role}_0_"
    labels = [name[len(prefix) :] for name in environment if name.startswith(prefix)]
    usable = sorted((label for label in labels if label != "ssh"), key=lambda label: (label == "http", label))
    if not usable:
        return None
    name = prefix + usable[0]
    return Sourced(parse_port(environment[name].split(",")[0], name), name)


def _hosts(environment: Environment, training: tuple[Role, ...]) -> Sourced[tuple[str, ...]] | None:
    """Return all hosts by node rank; None when one is missing. Two containers may share a host."""
    hosts = []
    for role in training:
        for index in range(role.count.value):
            host = first_host(environment, (f"PAI_HOST_IP_{role.name}_{index}",))
            if host is None:
                return None
            hosts.append(host.value)
    return Sourced(tuple(hosts), "PAI_HOST_IP_<role>_<index>")


OPENPAI = Dialect(
    name="openpai",
    title="Microsoft OpenPAI",
    marks=(("PAI_TASK_ROLE_LIST",), ("PAI_CURRENT_TASK_ROLE_NAME",)),
    node_rank=("PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX",),
    job_id=("PAI_JOB_NAME",),
    refine=_refine,
)
