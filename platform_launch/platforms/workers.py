"""Is this command already a worker? Launchers that start one process per GPU, and how to start one per node.

This is separate from the topology: eight copies of a launcher on one node would start 64 processes. With
exactly one task per node these launchers are node launchers like any other. LOCAL_RANK alone proves nothing:
Azure Machine Learning sets it to 0 on every node.
"""

from __future__ import annotations

from platform_launch.environment import Environment, Sourced
from platform_launch.platforms import slurm
from platform_launch.platforms.reading import Reading
from platform_launch.text import Phrase
from platform_launch.values import dataclass


@dataclass(frozen=True)
class Launcher:
    """One step launcher's variables.

    ``per_node`` names the number of its processes on this node; if none is exported, the total is divided by
    ``nnodes``. ``decides``: if it reports one task per node, outer launchers are not checked.
    """

    program: str
    rank: str
    world_size: str
    local_rank: str
    once_per_node: str
    per_node: tuple[str, ...] = ()
    nnodes: str = ""
    decides: bool = False


TORCHRUN = Launcher(
    program="torchrun",
    rank="RANK",
    world_size="WORLD_SIZE",
    local_rank="LOCAL_RANK",
    per_node=("LOCAL_WORLD_SIZE",),
    once_per_node="start platform-launch in torchrun's place, once per node, and give it the script",
)
SRUN = Launcher(
    program="srun",
    rank="SLURM_PROCID",
    world_size="SLURM_NTASKS",
    local_rank="SLURM_LOCALID",
    once_per_node="start it once per node: srun --ntasks-per-node=1",
)
STEP_LAUNCHERS = (
    Launcher(
        program="mpirun_rsh",
        rank="MV2_COMM_WORLD_RANK",
        world_size="MV2_COMM_WORLD_SIZE",
        local_rank="MV2_COMM_WORLD_LOCAL_RANK",
        per_node=("MV2_COMM_WORLD_LOCAL_SIZE",),
        once_per_node="start it once per node: list each host once and give -np the number of nodes",
        decides=True,
    ),
    Launcher(
        program="mpirun",
        rank="OMPI_COMM_WORLD_RANK",
        world_size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        per_node=("OMPI_COMM_WORLD_LOCAL_SIZE",),
        once_per_node="start it once per node: mpirun --map-by ppr:1:node -x MASTER_ADDR",
        decides=True,
    ),
    Launcher(
        program="jsrun",
        rank="JSM_NAMESPACE_RANK",
        world_size="JSM_NAMESPACE_SIZE",
        local_rank="JSM_NAMESPACE_LOCAL_RANK",
        per_node=("JSM_NAMESPACE_LOCAL_SIZE",),
        once_per_node="start it once per node: jsrun -r 1 -a 1",
    ),
    Launcher(
        program="flux run",
        rank="FLUX_TASK_RANK",
        world_size="FLUX_JOB_SIZE",
        local_rank="FLUX_TASK_LOCAL_ID",
        nnodes="FLUX_JOB_NNODES",
        once_per_node="start it once per node: flux run -N <nodes> --tasks-per-node=1",
    ),
    Launcher(
        program="mpiexec",
        rank="PALS_RANKID",
        world_size="PMI_SIZE",
        local_rank="PALS_LOCAL_RANKID",
        per_node=("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
        once_per_node="start it once per node: mpiexec --ppn 1",
    ),
    SRUN,
    Launcher(
        program="mpiexec",
        rank="PMI_RANK",
        world_size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        per_node=("MPI_LOCALNRANKS",),
        once_per_node="start it once per node: mpiexec -ppn 1",
    ),
)
"""Innermost first: what was started last knows best what runs on this node."""


def mark_worker(reading: Reading, environment: Environment) -> None:
    """Mark the reading as that of a process if a step launcher runs several tasks on this node.

    Raises TopologyError when a launcher's own counts are not numbers.
    """
    for launcher in STEP_LAUNCHERS:
        if launcher.rank not in environment:
            continue
        tasks = tasks_on_node(launcher, environment, reading.nnodes)
        if tasks and tasks.value > 1:
            mark(
                reading,
                environment,
                launcher,
                Phrase(
                    "{tasks_source}: {tasks} tasks on this node", tasks_source=tasks.source, tasks=tasks.value
                ),
            )
            reading.nproc_per_node = reading.nproc_per_node or tasks
            return
        local_rank = environment.integer(launcher.local_rank)
        if local_rank and local_rank.value > 0:
            mark(reading, environment, launcher, f"{local_rank.source}={local_rank.value}")
            return
        if tasks and launcher.decides:
            return


def mark(reading: Reading, environment: Environment, launcher: Launcher, evidence: str) -> None:
    """Mark the reading as that of one process which ``launcher`` started."""
    rank, world_size, local_rank = (
        number.value if (number := environment.integer(name)) else None
        for name in (launcher.rank, launcher.world_size, launcher.local_rank)
    )
    reading.mark_process(
        Phrase(
            "this is process {rank} of {world_size} started by {program} ({evidence}), but this "
            "command starts a node's processes itself and must run once per node",
            rank=rank,
            world_size=world_size,
            program=launcher.program,
            evidence=evidence,
        ),
        launcher.once_per_node,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
    )


def tasks_on_node(
    launcher: Launcher, environment: Environment, nnodes: Sourced[int] | None
) -> Sourced[int] | None:
    """Return how many tasks the launcher runs on this node, or None if its variables do not show it.

    ``nnodes`` divides the total if the launcher exports neither tasks per node nor nodes.
    """
    if launcher is SRUN:
        return slurm.tasks_on_node(environment)
    for name in launcher.per_node:
        if count := environment.integer(name, 1):
            return count
    total = environment.integer(launcher.world_size, 1)
    nnodes = (environment.integer(launcher.nnodes, 1) if launcher.nnodes else None) or nnodes
    if total and nnodes:
        return Sourced(
            -(-total.value // nnodes.value),
            Phrase(
                "{total_source} ÷ {nnodes_source}", total_source=total.source, nnodes_source=nnodes.source
            ),
        )
    return None
