"""What the system around a step launcher knows: hosts, GPUs and a job id.

mpirun and its like say which process this is and nothing about machines. Ranks come from them, addresses
from the batch system that holds the allocation, whichever it is.
"""

from __future__ import annotations

from platform_launch.environment import Environment, Sourced
from platform_launch.errors import TopologyError
from platform_launch.platforms import batch, slurm
from platform_launch.platforms.base import first_count, lenient_count
from platform_launch.platforms.ports import set_derived_port
from platform_launch.platforms.reading import Reading, first_text
from platform_launch.text import Phrase

MPI_OPERATOR_HOSTFILE = "/etc/mpi/hostfile"

_JOB_IDS = (*slurm.JOB_IDS, "LSB_JOBID", "COBALT_JOBID", "PBS_JOBID")


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
            reading.note("master_addr", error)
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
            "{source} lists {hosts} hosts, {nnodes_source} says {nnodes}: cannot tell which of them "
            "is node 0",
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
