"""MPI launchers, Flux and PALS: processes with ranks, and nodes only by division.

No MPI exports the index of a node (OMPI_COMM_WORLD_NODE_RANK is the process's index on its node over all
jobs), so it is rank ÷ processes per node: right for block mapping, and certain with one process per node.
They do not know the machines: hosts, GPUs and a job id come from the batch system around the step. Sources:
Open MPI v5 environment variables; MVAPICH2's mpirun_rsh; flux-environment(7); SLURM's HPE plugin;
kubeflow/mpi-operator.
"""

from __future__ import annotations

from platform_launch.environment import Environment, Sourced
from platform_launch.errors import TopologyError, shown
from platform_launch.platforms import batch, slurm
from platform_launch.platforms.base import Dialect, first_count, lenient_count
from platform_launch.platforms.ports import set_derived_port
from platform_launch.platforms.reading import Reading, first_integer, first_text
from platform_launch.text import Phrase, counted, either

MPI_OPERATOR_HOSTFILE = "/etc/mpi/hostfile"

_JOB_IDS = (*slurm.JOB_IDS, "LSB_JOBID", "COBALT_JOBID", "PBS_JOBID")


def divide(
    reading: Reading,
    environment: Environment,
    rank_name: str,
    size_name: str,
    local_names: tuple[str, ...],
) -> None:
    """Derive nodes and node rank from processes. Adds a problem if the nodes cannot be alike."""
    size = reading.attempt("nnodes", lambda: environment.integer(size_name, 1), size_name)
    rank = reading.attempt("node_rank", lambda: environment.integer(rank_name), rank_name)
    local = reading.attempt("nnodes", lambda: first_integer(environment, local_names, 1), either(local_names))
    if size and size.value == 1 and local is None:
        local = Sourced(1, size_name)
    if size is None or local is None:
        return
    if size.value % local.value:
        reading.refuse(
            "nnodes",
            Phrase(
                "{size_name}={size} is not a multiple of {local_source}={local}: the nodes run different "
                "numbers of processes",
                size_name=size_name,
                size=size.value,
                local_source=local.source,
                local=local.value,
            ),
            "start one process per node",
        )
        return
    reading.nnodes = Sourced(
        size.value // local.value,
        Phrase("{size_name} ÷ {local_source}", size_name=size_name, local_source=local.source),
    )
    if rank:
        reading.node_rank = Sourced(
            rank.value // local.value,
            Phrase("{rank_name} ÷ {local_source}", rank_name=rank_name, local_source=local.source),
        )
    if local.value > 1:
        reading.nproc_per_node = local


def _refine_openmpi(reading: Reading, environment: Environment) -> None:
    world = "OMPI_COMM_WORLD"
    divide(reading, environment, f"{world}_RANK", f"{world}_SIZE", (f"{world}_LOCAL_SIZE",))
    fill_from_allocation(reading, environment)


def _refine_mvapich(reading: Reading, environment: Environment) -> None:
    world = "MV2_COMM_WORLD"
    divide(reading, environment, f"{world}_RANK", f"{world}_SIZE", (f"{world}_LOCAL_SIZE",))
    fill_from_allocation(reading, environment)


def _refine_hydra(reading: Reading, environment: Environment) -> None:
    divide(reading, environment, "PMI_RANK", "PMI_SIZE", ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"))
    fill_from_allocation(reading, environment)


def _refine_flux(reading: Reading, environment: Environment) -> None:
    tasks = reading.attempt("nnodes", lambda: environment.integer("FLUX_JOB_SIZE", 1), "FLUX_JOB_SIZE")
    task = reading.attempt("node_rank", lambda: environment.integer("FLUX_TASK_RANK"), "FLUX_TASK_RANK")
    if reading.nnodes is None or tasks is None or task is None:
        return
    if tasks.value < reading.nnodes.value:
        reading.refuse(
            "nnodes",
            Phrase(
                "FLUX_JOB_SIZE={tasks} is less than FLUX_JOB_NNODES={nnodes}",
                tasks=tasks.value,
                nnodes=reading.nnodes.value,
            ),
        )
        return
    per_node = tasks.value // reading.nnodes.value
    node = reading.attempt("node_rank", lambda: environment.integer("PALS_NODEID"), "")
    if node is None and tasks.value % reading.nnodes.value == 0:
        node = Sourced(
            task.value // per_node,
            Phrase("FLUX_TASK_RANK ÷ {tasks} per node", tasks=counted(per_node, "task")),
        )
    reading.node_rank = node


def _refine_pals(reading: Reading, environment: Environment) -> None:
    hosts = reading.attempt("nnodes", lambda: hosts_of_allocation(environment), "PBS_NODEFILE")
    if hosts:
        reading.nnodes = Sourced(len(hosts.value), Phrase("distinct hosts of {source}", source=hosts.source))
    fill_from_allocation(reading, environment)
    _check_pals_size(reading, environment)


def _check_pals_size(reading: Reading, environment: Environment) -> None:
    """With one task per node, PMI_SIZE counts nodes: a step on part of the allocation shows here."""
    try:
        local = first_integer(environment, ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"))
        size = environment.integer("PMI_SIZE")
    except TopologyError as error:
        reading.add_problem("nnodes", error)
        return
    if local and local.value == 1 and size and reading.nnodes and size.value != reading.nnodes.value:
        reading.refuse(
            "nnodes",
            Phrase(
                "PMI_SIZE={size} with one task per node, but {nnodes_source} are {nnodes}: this step "
                "uses part of the allocation",
                size=size.value,
                nnodes_source=reading.nnodes.source,
                nnodes=reading.nnodes.value,
            ),
            "pass --nnodes and --master-addr",
        )


def _refine_mpijob(reading: Reading, environment: Environment) -> None:
    """Read the hostfile, and refuse: the roles of an MPIJob are never nodes of this launcher."""
    try:
        lines = hostfile_slots(environment)
    except TopologyError as error:
        reading.add_problem("nnodes", error)
        lines = ()
    if lines:
        hosts, slots = tuple(host for host, _ in lines), {count for _, count in lines}
        reading.hosts = Sourced(hosts, MPI_OPERATOR_HOSTFILE)
        reading.nnodes = Sourced(len(hosts), Phrase("lines of {file}", file=MPI_OPERATOR_HOSTFILE))
        reading.master_addr = Sourced(hosts[0], Phrase("first host of {file}", file=MPI_OPERATOR_HOSTFILE))
        same = slots.pop() if len(slots) == 1 else None
        reading.nproc_per_node = (
            Sourced(same, Phrase("slots of {file}", file=MPI_OPERATOR_HOSTFILE)) if same else None
        )
    role = shown(environment.get("K_MPI_JOB_ROLE", "launcher").strip())
    reading.refuse(
        "node_rank",
        Phrase(
            "this pod's role in an MPIJob is {role}: mpirun starts the workers, not this command", role=role
        ),
        "in the launcher pod, run: mpirun --map-by ppr:1:node -x MASTER_ADDR <this command>",
    )


def hosts_of_allocation(environment: Environment) -> batch.Hosts | None:
    """Return the hosts of the allocation around this step, or None when nothing holds one."""
    if any(name in environment for name in slurm.NODE_LISTS):
        return slurm.read_hosts(environment, step=slurm.in_step(environment))
    if "LSB_JOBID" in environment:
        return batch.lsf_hosts(environment)
    for variable in ("COBALT_NODEFILE", "PBS_NODEFILE", "OMPI_MCA_orte_default_hostfile"):
        if variable in environment:
            return batch.read_host_file(environment, variable)
    lines = hostfile_slots(environment)
    return Sourced(tuple(host for host, _ in lines), MPI_OPERATOR_HOSTFILE) if lines else None


def hostfile_slots(environment: Environment) -> tuple[tuple[str, int | None], ...]:
    """Return hosts and slots of the MPI operator's hostfile: ``host slots=8`` or ``host:8`` a line."""
    return batch.parse_hostfile(environment.read_file(MPI_OPERATOR_HOSTFILE) or "", MPI_OPERATOR_HOSTFILE)


def fill_from_allocation(reading: Reading, environment: Environment) -> None:
    """Fill in hosts, node 0's address, GPUs, job id and port; never over what the user exported.

    A list that does not fit the number of nodes gives no address: the step may run on any of the hosts.
    """
    try:
        hosts = hosts_of_allocation(environment)
    except TopologyError as error:
        if reading.master_addr is None:
            reading.add_problem("master_addr", error)
        hosts = None
    reading.job_id = reading.job_id or first_text(environment, _JOB_IDS)
    set_derived_port(reading, first_text(environment, _JOB_IDS))
    reading.accelerators = reading.accelerators or lenient_count(environment, ("SLURM_GPUS_ON_NODE",))
    if reading.nproc_per_node is None:
        reading.nproc_per_node = reading.attempt(
            "nproc_per_node", lambda: first_count(environment, ("SLURM_GPUS_ON_NODE", "NPROC_PER_NODE")), ""
        )
    if hosts is None:
        return
    if reading.nnodes and len(hosts.value) != reading.nnodes.value:
        message = Phrase(
            "{source} lists {hosts} hosts, but {nnodes_source} is {nnodes}: cannot tell which of them is "
            "node 0",
            source=hosts.source,
            hosts=len(hosts.value),
            nnodes_source=reading.nnodes.source,
            nnodes=reading.nnodes.value,
        )
        if reading.master_addr is None:
            reading.refuse("master_addr", message, "export MASTER_ADDR, or pass --master-addr")
        return
    reading.hosts = hosts
    reading.master_addr = reading.master_addr or Sourced(
        hosts.value[0], Phrase("first host of {source}", source=hosts.source)
    )


OPENMPI = Dialect(
    name="openmpi",
    title="Open MPI (mpirun)",
    marks=tuple((f"OMPI_COMM_WORLD_{name}",) for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    address_hint="export MASTER_ADDR (mpirun -x MASTER_ADDR)",
    refine=_refine_openmpi,
)

MVAPICH = Dialect(
    name="mvapich",
    title="MVAPICH2 (mpirun_rsh)",
    marks=tuple((f"MV2_COMM_WORLD_{name}",) for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    address_hint="export MASTER_ADDR (mpirun_rsh … MASTER_ADDR=<host>)",
    refine=_refine_mvapich,
)

HYDRA = Dialect(
    name="hydra",
    title="MPICH, Intel MPI (Hydra, PMI)",
    grade="B",
    marks=(("PMI_RANK",), ("PMI_SIZE",)),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    address_hint="export MASTER_ADDR (mpiexec -genv MASTER_ADDR <host>)",
    refine=_refine_hydra,
)

FLUX = Dialect(
    name="flux",
    title="Flux",
    marks=(("FLUX_TASK_RANK",), ("FLUX_JOB_SIZE",), ("FLUX_JOB_NNODES",)),
    nnodes=("FLUX_JOB_NNODES",),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("NPROC_PER_NODE",),
    job_id=("FLUX_JOB_ID",),
    address_hint="export MASTER_ADDR=$(flux hostlist -n 0 local)",
    refine=_refine_flux,
)

PALS = Dialect(
    name="pals",
    title="HPE/Cray PALS",
    marks=(("PALS_NODEID",), ("PALS_RANKID",)),
    node_rank=("PALS_NODEID",),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    job_id=("PALS_APID",),
    refine=_refine_pals,
)

MPIJOB = Dialect(
    name="mpijob",
    title="Kubeflow MPIJob (mpi-operator)",
    marks=(("K_MPI_JOB_ROLE",), ("KUBERNETES_SERVICE_HOST", "OMPI_MCA_orte_default_hostfile")),
    port=None,
    refine=_refine_mpijob,
)
