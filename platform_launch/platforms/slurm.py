"""SLURM: node ranks from the step, addresses from compressed node lists; a batch script is not a step.

Sources: sbatch(1) and srun(1), OUTPUT ENVIRONMENT VARIABLES; a public 4-node dump of a batch body.
"""

from __future__ import annotations

from platform_launch.environment import Environment, Sourced
from platform_launch.errors import TopologyError
from platform_launch.hostlist import expand, expand_counts
from platform_launch.platforms.base import Dialect
from platform_launch.platforms.ports import set_derived_port
from platform_launch.platforms.reading import Reading, first_integer, first_text
from platform_launch.text import Phrase, either

NODE_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
JOB_IDS = ("SLURM_JOB_ID", "SLURM_JOBID")

# Step ids of what is no srun step: slurm.h's SLURM_BATCH_SCRIPT, SLURM_EXTERN_CONT, SLURM_INTERACTIVE_STEP.
_NOT_A_STEP = frozenset({"batch", "extern", "interactive", "4294967290", "4294967291", "4294967292"})


def in_step(environment: Environment) -> bool:
    """Return whether srun started this task, as opposed to a batch body or an interactive allocation."""
    step_id = environment.get("SLURM_STEP_ID", environment.get("SLURM_STEPID", "")).strip()
    if step_id in _NOT_A_STEP:
        return False
    return bool(step_id) or "SLURM_STEP_NODELIST" in environment


def tasks_on_node(environment: Environment) -> Sourced[int] | None:
    """Return the number of the step's tasks on this node; None outside a step.

    SLURM_NTASKS_PER_NODE is not used: it is the batch job's option and leaks into steps that changed it.
    """
    if not in_step(environment):
        return None
    node = environment.integer("SLURM_NODEID")
    text = first_text(environment, ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    if text:
        counts = expand_counts(text.value)
        if node and node.value < len(counts):
            return Sourced(counts[node.value], text.source)
    tasks = first_integer(environment, ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), 1)
    nodes = first_integer(environment, ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"), 1)
    if tasks and nodes:
        return Sourced(
            -(-tasks.value // nodes.value),
            Phrase("{tasks_source} ÷ {nodes_source}", tasks_source=tasks.source, nodes_source=nodes.source),
        )
    return None


def read_hosts(environment: Environment, *, step: bool) -> Sourced[tuple[str, ...]] | None:
    """Return the hosts of the step, otherwise of the whole job, in the order of SLURM_NODEID."""
    text = first_text(environment, (("SLURM_STEP_NODELIST", *NODE_LISTS) if step else NODE_LISTS))
    if text is None:
        return None
    try:
        return Sourced(expand(text.value), text.source)
    except TopologyError as error:
        raise TopologyError(
            Phrase("{source}: {message}", source=text.source, message=error.message), error.hint
        ) from None


def _refine(reading: Reading, environment: Environment) -> None:
    step = in_step(environment)
    job_counts = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
    counts = ("SLURM_STEP_NUM_NODES", *job_counts) if step else job_counts
    reading.hosts = reading.attempt("hosts", lambda: read_hosts(environment, step=step), "")
    reading.nnodes = reading.attempt(
        "nnodes", lambda: first_integer(environment, counts, 1) or _count(reading.hosts), either(counts)
    )
    if reading.hosts and not reading.master_addr:
        reading.master_addr = Sourced(
            reading.hosts.value[0], Phrase("first host of {source}", source=reading.hosts.source)
        )
    set_derived_port(reading, reading.job_id)
    if reading.nnodes and reading.nnodes.value > 1 and not step:
        reading.refuse(
            "nnodes",
            Phrase(
                "this is a batch script or an interactive shell of a {nnodes}-node allocation, not a step "
                "(no SLURM_STEP_NODELIST): only one copy runs, and the other nodes would never join",
                nnodes=reading.nnodes.value,
            ),
            _how_to_start(environment),
        )
    _warn_of_partial_step(reading, environment)


def _how_to_start(environment: Environment) -> str:
    groups = environment.get("SLURM_HET_SIZE", "").strip()
    if groups.isdigit() and int(groups) > 1:
        return Phrase(
            "this job has {groups} heterogeneous groups (SLURM_HET_SIZE): start it on every node of one, "
            "with srun --het-group=0 --ntasks-per-node=1 <this command>; "
            "or pass --nnodes 1 to use this node only",
            groups=groups,
        )
    return Phrase(
        "start it on every node: srun --ntasks-per-node=1 <this command>; "
        "or pass --nnodes 1 to use this node only"
    )


def _count(hosts: Sourced[tuple[str, ...]] | None) -> Sourced[int] | None:
    return Sourced(len(hosts.value), Phrase("hosts of {source}", source=hosts.source)) if hosts else None


def _warn_of_partial_step(reading: Reading, environment: Environment) -> None:
    if reading.nnodes is None or reading.nnodes.source != "SLURM_STEP_NUM_NODES":
        return
    job = environment.get("SLURM_JOB_NUM_NODES", "").strip()
    if job.isdigit() and job != str(reading.nnodes.value):
        reading.warnings.append(
            Phrase(
                "this step uses {nnodes} of the allocation's {job} nodes (SLURM_STEP_NUM_NODES)",
                nnodes=reading.nnodes.value,
                job=job,
            )
        )


SLURM = Dialect(
    name="slurm",
    title="SLURM",
    marks=(("SLURM_JOB_ID",), ("SLURM_JOBID",), ("SLURM_NODEID",), ("SLURM_STEP_NODELIST",)),
    node_rank=("SLURM_NODEID",),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("SLURM_GPUS_ON_NODE", "NPROC_PER_NODE"),
    accelerators=("SLURM_GPUS_ON_NODE",),
    job_id=JOB_IDS,
    restart_count=("SLURM_RESTART_COUNT",),
    own_names=("SLURMD_NODENAME",),
    hint="start it with srun --ntasks-per-node=1",
    refine=_refine,
)
