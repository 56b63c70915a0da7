"""ByteDance: Volcengine / BytePlus ML Platform (roles), and Arnold / Merlin (port lists, IPv6).

Sources: volcengine.com/docs/6459/75329; docs.byteplus.com "List of common environment variables"; public
users of ARNOLD_WORKER_0_HOST. MLP_WORKER_RACK_RANK_INDEX orders nodes by switch on some instances only; all
nodes must use one index, so it is MLP_ROLE_INDEX.
"""

from __future__ import annotations

from platform_launch.environment import Environment, Sourced, parse_port
from platform_launch.errors import TopologyError
from platform_launch.hostlist import refuse_repeats, split_host_port
from platform_launch.platforms.base import Dialect, first_count, first_hosts
from platform_launch.platforms.reading import Reading, first_host
from platform_launch.platforms.roles import Role, rank_by_role, training_roles
from platform_launch.text import Phrase

_ROLES = ("CHIEF", "WORKER", "PS", "SERVER", "SCHEDULER", "EVALUATOR")


def _refine_mlp(reading: Reading, environment: Environment) -> None:
    index = reading.node_rank
    roles = reading.attempt("nnodes", lambda: _mlp_roles(environment), "MLP_WORKER_NUM")
    if roles is None:
        return
    training = training_roles(roles)
    own_role = environment.get("MLP_ROLE", "").strip().upper()
    if not own_role and len(roles) == 1:
        own_role = roles[0].name
    if not own_role:
        reading.refuse("node_rank", "MLP_ROLE is not set, and the job has several roles")
    else:
        rank_by_role(reading, roles, own_role, index)
    reading.nproc_per_node = reading.attempt(
        "nproc_per_node",
        lambda: first_count(environment, (f"MLP_{own_role}_GPU", "MLP_WORKER_GPU", "MLP_GPU")),
        "",
    )
    reading.accelerators = reading.nproc_per_node
    if not training:
        return
    head = f"MLP_{training[0].name}_0"
    reading.master_addr = reading.attempt(
        "master_addr", lambda: first_host(environment, (f"{head}_HOST",)), f"{head}_HOST"
    )
    reading.master_port = reading.attempt(
        "master_port", lambda: first_listed_port(environment, f"{head}_PORT"), ""
    )
    lists = tuple(f"MLP_{role.name}_ALL_HOSTS" for role in training)
    reading.hosts = reading.attempt("hosts", lambda: _joined_hosts(environment, lists), "")
    if reading.master_addr is None and reading.hosts:
        reading.master_addr = Sourced(
            reading.hosts.value[0], Phrase("first host of {source}", source=lists[0])
        )


def _joined_hosts(environment: Environment, lists: tuple[str, ...]) -> Sourced[tuple[str, ...]] | None:
    parts = [part for name in lists if (part := first_hosts(environment, (name,)))]
    if len(parts) < len(lists):
        return None
    return Sourced(tuple(host for part in parts for host in part.value), " + ".join(lists))


def _mlp_roles(environment: Environment) -> tuple[Role, ...] | None:
    """Return the job's roles in the platform's order; None when no MLP_<ROLE>_NUM is set."""
    counts = {role: environment.integer(f"MLP_{role}_NUM") for role in _ROLES}
    for role, count in counts.items():
        if count is None and f"MLP_{role}_0_HOST" in environment:
            raise TopologyError(
                Phrase("MLP_{role}_0_HOST is set and MLP_{role}_NUM is not: expected both", role=role)
            )
    return tuple(Role(role, count) for role, count in counts.items() if count) or None


def first_listed_port(environment: Environment, name: str) -> Sourced[int] | None:
    """Return the first of a comma separated list of ports."""
    text = environment.text(name)
    return Sourced(parse_port(text.value.split(",")[0], name), name) if text else None


def _refine_arnold(reading: Reading, environment: Environment) -> None:
    reading.master_port = reading.attempt(
        "master_port", lambda: first_listed_port(environment, "ARNOLD_WORKER_0_PORT"), ""
    )
    workers = environment.text("ARNOLD_WORKER_HOSTS")
    if workers:
        reading.hosts = reading.attempt("hosts", lambda: _endpoints(workers), "")
    if reading.master_addr is None and reading.hosts:
        reading.master_addr = Sourced(
            reading.hosts.value[0], Phrase("first host of {source}", source=reading.hosts.source)
        )
    if reading.master_addr is None:
        executor = ("ARNOLD_EXECUTOR_0_HOST",)
        reading.master_addr = reading.attempt(
            "master_addr", lambda: first_host(environment, executor), "ARNOLD_WORKER_0_HOST"
        )


def _endpoints(text: Sourced[str]) -> Sourced[tuple[str, ...]]:
    """Read ``host:port`` items; two workers may share a host if their ports differ."""
    items = [item.strip() for item in text.value.strip(",").split(",")]
    refuse_repeats(items, text.source)
    return Sourced(tuple(split_host_port(item, text.source)[0] for item in items), text.source)


VOLCENGINE_MLP = Dialect(
    name="volcengine_mlp",
    title="Volcengine / BytePlus ML Platform",
    marks=(("MLP_ROLE_INDEX",), ("MLP_WORKER_NUM",), ("MLP_ROLE",)),
    node_rank=("MLP_ROLE_INDEX",),
    job_id=("MLP_TASK_ID",),
    interface=("MLP_IFNAME",),
    own_names=("MLP_HOST", "MLP_PRIMARY_HOST"),
    refine=_refine_mlp,
)

ARNOLD = Dialect(
    name="arnold",
    title="ByteDance Arnold / Merlin",
    grade="B",
    marks=(("ARNOLD_WORKER_NUM",), ("ARNOLD_ID",), ("ARNOLD_WORKER_0_HOST",)),
    nnodes=("ARNOLD_WORKER_NUM",),
    node_rank=("ARNOLD_ID",),
    master_addr=("ARNOLD_WORKER_0_HOST",),
    nproc_per_node=("ARNOLD_WORKER_GPU",),
    accelerators=("ARNOLD_WORKER_GPU",),
    job_id=("ARNOLD_JOB_ID", "ARNOLD_TASK_ID", "ARNOLD_TRIAL_ID"),
    refine=_refine_arnold,
)
