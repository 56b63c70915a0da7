"""Kubeflow's torch jobs: PyTorchJob, Trainer v2 and Run:ai's PyTorchJob.

PET_NNODES and PET_NODE_RANK count nodes. RANK is the pod's index, always; WORLD_SIZE is replicas up to
training-operator v1.6, replicas × nprocPerNode since v1.7 when that is an integer: it is never read here.
Sources: kubeflow/training-operator v1.9.0 envvar.go, elastic.go; kubeflow/trainer plugins torch.go, jax.go.
"""

from __future__ import annotations

from dataclasses import replace

from platform_launch.environment import Environment, Sourced
from platform_launch.errors import shown
from platform_launch.platforms.base import Dialect
from platform_launch.platforms.reading import Reading, fill_endpoint
from platform_launch.text import Phrase

# Where a TrainJob's status is posted, since Trainer 2.2.
TRAINJOB_SERVER = "KUBEFLOW_TRAINER_SERVER_URL"


def _refine_pytorchjob(reading: Reading, environment: Environment) -> None:
    _refuse_elastic(reading, environment)
    fill_endpoint(reading, environment, "PET_RDZV_ENDPOINT")


def _refuse_elastic(reading: Reading, environment: Environment) -> None:
    """Refuse an elastic job: it gives ``min:max`` nodes and no ranks."""
    nnodes = environment.get("PET_NNODES", "").strip()
    if ":" not in nnodes:
        return
    reading.problems.pop("nnodes", None)
    reading.refuse(
        "nnodes",
        Phrase(
            "PET_NNODES={nnodes} is an elastic range: expected a fixed number of nodes, and ranks",
            nnodes=shown(nnodes),
        ),
        "give the job a Master replica and no elasticPolicy, or pass --nnodes and --node-rank",
    )


def _refine_trainer(reading: Reading, environment: Environment) -> None:
    """The JAX runtime of the same operator has its own names; its coordinator is ``host:port``."""
    _refuse_elastic(reading, environment)
    fill_endpoint(reading, environment, "JAX_COORDINATOR_ADDRESS")


def _refine_runai(reading: Reading, environment: Environment) -> None:
    """RUNAI_NUM_OF_GPUS may be a fraction of one GPU; only a whole number counts processes."""
    _refine_pytorchjob(reading, environment)
    gpus = environment.get("RUNAI_NUM_OF_GPUS", "").strip()
    whole, _, fraction = gpus.partition(".")
    if whole.isascii() and whole.isdigit() and len(whole) <= 4 and not fraction.strip("0") and int(whole):
        reading.nproc_per_node = reading.accelerators = Sourced(int(whole), "RUNAI_NUM_OF_GPUS")


PYTORCHJOB = Dialect(
    name="pytorchjob",
    title="Kubeflow PyTorchJob",
    marks=(("PET_NNODES",), ("PET_NODE_RANK",), ("PET_MASTER_ADDR",), ("PET_RDZV_ENDPOINT",)),
    nnodes=("PET_NNODES",),
    node_rank=("PET_NODE_RANK", "RANK"),
    same_node_rank=("RANK",),
    master_addr=("PET_MASTER_ADDR", "MASTER_ADDR"),
    master_port=("PET_MASTER_PORT", "MASTER_PORT"),
    nproc_per_node=("PET_NPROC_PER_NODE",),
    refine=_refine_pytorchjob,
)

TRAINER_V2 = Dialect(
    name="trainer_v2",
    title="Kubeflow Trainer v2 (TrainJob)",
    marks=(
        ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
        ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"),
    ),
    absent=("WORLD_SIZE", "RANK"),
    nnodes=("PET_NNODES", "JAX_NUM_PROCESSES"),
    node_rank=("PET_NODE_RANK", "JAX_PROCESS_ID"),
    same_node_rank=("JOB_COMPLETION_INDEX",),
    master_addr=("PET_MASTER_ADDR",),
    master_port=("PET_MASTER_PORT", "JAX_COORDINATOR_PORT"),
    nproc_per_node=("PET_NPROC_PER_NODE",),
    refine=_refine_trainer,
)

RUNAI = replace(
    PYTORCHJOB,
    name="runai",
    title="NVIDIA Run:ai",
    grade="B",
    marks=(("RUNAI_*", "PET_NNODES"),),
    refine=_refine_runai,
)
