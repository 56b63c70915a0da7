"""Environment → Topology: which of how many nodes this is, on every platform this product knows.

``PLATFORMS`` is the order in which dialects are tried; the first whose marks are set is used. Two questions
stay apart: whether this command runs once per node or once per process (``workers``), and which variables
give the topology. Flags override single fields (``resolve``).
"""

from __future__ import annotations

from platform_launch.environment import Environment
from platform_launch.errors import TopologyError, UsageError, shown
from platform_launch.platforms import bare, tables, workers
from platform_launch.platforms.aws import AWS_BATCH, SAGEMAKER
from platform_launch.platforms.azureml import AZUREML
from platform_launch.platforms.bare import doubt_count
from platform_launch.platforms.base import Dialect
from platform_launch.platforms.batch import COBALT, LSF, PBS
from platform_launch.platforms.clusters import (
    AIHC,
    DETERMINED,
    LEPTON,
    MODELARTS,
    PADDLECLOUD,
    PROCGUARD,
)
from platform_launch.platforms.google import GKE_TPU, VERTEX
from platform_launch.platforms.kubeflow import PYTORCHJOB, RUNAI, TRAINER_V2
from platform_launch.platforms.kubernetes import DOWNWARD, INDEXED_JOB, JOBSET, LWS
from platform_launch.platforms.local import LOCAL
from platform_launch.platforms.mpi import FLUX, HYDRA, MPIJOB, MVAPICH, OPENMPI, PALS
from platform_launch.platforms.openpai import OPENPAI
from platform_launch.platforms.reading import Reading
from platform_launch.platforms.resolve import is_complete, resolve, with_reading
from platform_launch.platforms.slurm import SLURM
from platform_launch.platforms.volcano import TORCHX, VOLCANO
from platform_launch.platforms.volcengine import ARNOLD, VOLCENGINE_MLP
from platform_launch.text import Phrase, either
from platform_launch.topology import Overrides, Topology

__all__ = ["LOCAL", "PLATFORMS", "Dialect", "detect", "doubt_count", "title_of"]

PLATFORMS: tuple[Dialect, ...] = (
    bare.TORCHRUN.because("a worker is never started again, whatever else it inherited"),
    PROCGUARD.because("its agent may run inside any other job, whose ranks are not those of the group"),
    TORCHX.because("runs on Volcano, Kueue, Batch or SLURM, but has ranks of its own"),
    tables.SKYPILOT.because("runs over Ray, Kubernetes or SLURM and knows its own nodes best"),
    tables.DSTACK.because("runs over clouds, Kubernetes or SLURM and knows its own nodes best"),
    LEPTON.because("its helper exports WORLD_SIZE and NODE_RANK too, which others would misread"),
    DETERMINED.because("its agent may run under SLURM or Kubernetes, whose ranks are not its own"),
    SAGEMAKER.because("names of its own; its MPI launcher also sets OMPI_*, which does not name the hosts"),
    AWS_BATCH.because("names of its own; nothing else sets them"),
    AZUREML.because("names of its own; gives the four bare names and OMPI_* another meaning"),
    VERTEX.because("names of its own; nothing else sets them"),
    MODELARTS.because("before Volcano, on which it is built: VC_* together with MA_* means ModelArts"),
    VOLCENGINE_MLP.because("names of its own; nothing else sets them"),
    ARNOLD.because("names of its own; nothing else sets them"),
    tables.SENSECORE.because("names of its own; its bare WORLD_SIZE and RANK are inconsistent"),
    tables.KUBEBRAIN.because("names of its own; it also sets NODE_RANK and MASTER_ADDR, as Lightning does"),
    AIHC.because("the four bare names, and one of its own"),
    tables.TI_ONE.because("the four bare names, and one of its own"),
    tables.TAIJI.because("generic names, but only together with CHIEF_IP or NODE_IP_LIST"),
    PADDLECLOUD.because("names of its own; nothing else sets them"),
    tables.NGC.because("names of its own; nothing else sets them"),
    OPENPAI.because("names of its own; nothing else sets them"),
    LWS.because("before GKE TPU: without a TPU in the leader the two ranks differ by one"),
    GKE_TPU.because("after LeaderWorkerSet, which counts the whole group"),
    RUNAI.because("a PyTorchJob that also sets the number of GPUs"),
    TRAINER_V2.because("PET_* count nodes; before JobSet and Indexed Job, which it is built on"),
    PYTORCHJOB.because("PET_* count nodes, while WORLD_SIZE may count processes"),
    VOLCANO.because(
        "after PyTorchJob, which Volcano only schedules; its plugin's RANK overrides its task index"
    ),
    MVAPICH.because("a step launcher: the launcher that started this process knows its rank best"),
    OPENMPI.because("a step launcher; hosts come from the batch system around it"),
    FLUX.because("a step launcher; it removes the SLURM_* and PMI_* of an outer job"),
    PALS.because("before SLURM and PBS, under which it runs: only PALS sets the node's index"),
    SLURM.because("a step has both rank and hosts; it also sets PMI_*"),
    LSF.because("an allocation: each node looks for itself in the list of hosts"),
    COBALT.because("an allocation: each node looks for itself in the list of hosts"),
    PBS.because("an allocation, after PALS, which it starts"),
    HYDRA.because("last of the launchers: Flux, PALS and SLURM set PMI_* as well"),
    tables.PAI_DLC.because("the four bare names, and a name that is less certain"),
    bare.MOSAICML.because(
        "only common names; with LOCAL_WORLD_SIZE and no RANK, WORLD_SIZE counts processes"
    ),
    tables.DLROVER.because("sets nodes and rank but no address"),
    bare.LIGHTNING.because("only common names; the number of nodes is in NNODES if there is no WORLD_SIZE"),
    bare.BARE_MASTER_QUAD.because("nothing else is set: the numbers count nodes"),
    MPIJOB.because("sets a role but no rank of a node"),
    JOBSET.because("before Indexed Job: the index restarts in every child Job"),
    INDEXED_JOB.because("sets only a rank"),
    tables.RAY.because("has no node index; other platforms run on it"),
    tables.MODAL.because("gives its topology only through an API"),
    DOWNWARD.because("any pod: what the user projects into it, else one node"),
)
"""All dialects in the order they are tried, each with the reason for its place."""

_BY_NAME = {dialect.name: dialect for dialect in (*PLATFORMS, LOCAL)}
_FROM_FLAGS = "flags"


def detect(environment: Environment, overrides: Overrides | None = None) -> Topology:
    """Return this node's rank in the job, from its variables and flags alone.

    Raises TopologyError when the variables contradict each other, leave a field open that no flag supplies,
    or show that this command was started once per process; its ``reading`` has what could be read. Raises
    UsageError for an unknown platform name.
    """
    overrides = overrides or Overrides()
    dialect = _choose(environment, overrides.platform)
    reading = _read(dialect, environment)
    if is_complete(overrides) and ("level" in reading.problems or dialect is LOCAL):
        reading = _from_flags(reading)
    if "level" in reading.problems:
        raise with_reading(reading.problems["level"], reading)
    return resolve(reading, overrides, environment)


def title_of(name: str) -> str:
    """Return the title of a platform, or its name if no dialect has it."""
    return next((dialect.title for dialect in PLATFORMS if dialect.name == name), name)


def _choose(environment: Environment, name: str | None) -> Dialect:
    """Return the platform that the user named, or the first whose marks are set."""
    if name is None:
        return next((dialect for dialect in PLATFORMS if dialect.matches(environment)), LOCAL)
    plain = name.strip().lower().replace("-", "_")
    if plain not in _BY_NAME:
        from difflib import get_close_matches

        near = get_close_matches(plain, _BY_NAME)
        meant = Phrase("did you mean {near}? ", near=either(near)) if near else ""
        raise UsageError(
            Phrase("unknown platform {name}", name=shown(name)),
            Phrase("{meant}platform-launch platforms lists them", meant=meant),
        )
    dialect = _BY_NAME[plain]
    if not dialect.matches(environment):
        raise TopologyError(
            Phrase(
                "--platform {plain}: its variables are not set here: expected {marks}",
                plain=plain,
                marks=dialect.recognised_by,
            ),
            "leave out --platform to let the variables decide, or pass --nnodes --node-rank --master-addr",
            {"platform": plain, "level": "node"},
        )
    return dialect


def _read(dialect: Dialect, environment: Environment) -> Reading:
    reading = dialect.read(environment)
    if reading.level == "node":
        try:
            workers.mark_worker(reading, environment)
        except TopologyError as error:
            reading.add_problem("level", error)
    return reading


def _from_flags(reading: Reading) -> Reading:
    """Use flags alone, because a worker inherits its parent's rendezvous."""
    level = reading.problems.get("level")
    warnings: list[str] = (
        [Phrase("{message}; ignored, because flags give the topology", message=level.message)]
        if level
        else []
    )
    return Reading(_FROM_FLAGS, warnings=warnings)
