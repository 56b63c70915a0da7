"""Azure Machine Learning: its PyTorch and MPI distributions.

By definition WORLD_SIZE counts processes; in the usual launch there is one process per node, LOCAL_RANK is 0
everywhere and the two counts coincide. Sources: MicrosoftDocs how-to-train-distributed-gpu; DeepSpeed comm.py
(ports 6105 and 54965); public users of AZUREML_NODE_COUNT.
"""

from __future__ import annotations

from platform_launch.environment import Environment, Sourced
from platform_launch.errors import TopologyError
from platform_launch.hostlist import split_host_port
from platform_launch.platforms.base import Dialect
from platform_launch.platforms.mpi import divide
from platform_launch.platforms.reading import Reading, disagreement
from platform_launch.text import Phrase

_PORT_ONE_NODE = Sourced(54965, "Azure Machine Learning's default for one node")


def _refine(reading: Reading, environment: Environment) -> None:
    if "OMPI_COMM_WORLD_SIZE" in environment:
        _read_mpi(reading, environment)
    else:
        _read_pytorch(reading, environment)


def _read_mpi(reading: Reading, environment: Environment) -> None:
    """Ranks come from Open MPI, the address from Azure Batch; the port behind it is not the rendezvous's."""
    counted, gpus, world = reading.nnodes, reading.nproc_per_node, "OMPI_COMM_WORLD"
    divide(reading, environment, f"{world}_RANK", f"{world}_SIZE", (f"{world}_LOCAL_SIZE",))
    reading.nproc_per_node = gpus or reading.nproc_per_node
    if counted and reading.nnodes and counted.value != reading.nnodes.value:
        reading.add_problem("nnodes", disagreement(counted, reading.nnodes))
    if reading.master_addr is None:
        for name in ("AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE"):
            _read_address(reading, environment, name)
    if "AZ_BATCH_MASTER_NODE" not in environment and reading.nnodes and reading.nnodes.value == 1:
        reading.default_port = _PORT_ONE_NODE


def _read_address(reading: Reading, environment: Environment, name: str) -> None:
    text = environment.text(name)
    if text is None or reading.master_addr:
        return
    read = reading.attempt("master_addr", lambda: split_host_port(text.value, name), "")
    reading.master_addr = Sourced(read[0], name) if read else None


def _read_pytorch(reading: Reading, environment: Environment) -> None:
    try:
        size = environment.integer("WORLD_SIZE", 1)
        rank = environment.integer("RANK")
        local_rank = environment.integer("LOCAL_RANK")
    except TopologyError as error:
        reading.add_problem("node_rank", error)
        return
    nnodes, node_rank = reading.nnodes, reading.node_rank
    several = (
        (nnodes and size and size.value != nnodes.value)
        or (node_rank and rank and rank.value != node_rank.value)
        or (local_rank and local_rank.value > 0)
    )
    if several:
        if nnodes and size and size.value % nnodes.value == 0:
            reading.nproc_per_node = Sourced(
                size.value // nnodes.value,
                Phrase("WORLD_SIZE ÷ {nnodes_source}", nnodes_source=nnodes.source),
            )
        reading.mark_process(
            "WORLD_SIZE, RANK and LOCAL_RANK show that this is one of several processes on this node, but "
            "this command starts a node's processes itself and must run once per node",
            "set process_count_per_instance to 1 (distribution type pytorch)",
            rank=rank.value if rank else None,
            local_rank=local_rank.value if local_rank else None,
            world_size=size.value if size else None,
        )
        return
    reading.nnodes = nnodes or size
    reading.node_rank = node_rank or rank
    if reading.nnodes:
        reading.missing.pop("nnodes", None)


AZUREML = Dialect(
    name="azureml",
    title="Azure Machine Learning",
    marks=(
        *(
            ("AZUREML_*", name)
            for name in (
                "AZUREML_NODE_COUNT",
                "MASTER_ADDR",
                "WORLD_SIZE",
                "NODE_RANK",
                "OMPI_COMM_WORLD_SIZE",
            )
        ),
        ("AZ_BATCH_MASTER_NODE",),
        ("AZ_BATCHAI_MPI_MASTER_NODE",),
    ),
    nnodes=("AZUREML_NODE_COUNT",),
    node_rank=("NODE_RANK",),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("AZ_BATCHAI_GPU_COUNT",),
    job_id=("AZUREML_RUN_ID", "AZUREML_EXPERIMENT_ID"),
    port=Sourced(6105, "Azure Machine Learning's default"),
    refine=_refine,
)
