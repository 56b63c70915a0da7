"""Environment → Topology: which of how many nodes this is, for every platform this product knows.

``PLATFORMS`` is the order in which dialects are tried; the first whose marks are there is believed. Two
questions stay apart: at which level this command runs (once per node, or once per process: ``workers``), and
whose names say the topology. Flags win field by field (``resolve``).
"""

from __future__ import annotations

from platform_launch.environment import Environment
from platform_launch.errors import TopologyError, UsageError, shown
from platform_launch.platforms import bare, tables, workers
from platform_launch.platforms.aws import AWS_BATCH, SAGEMAKER
from platform_launch.platforms.azureml import AZUREML
from platform_launch.platforms.baidu import AIHC, PADDLECLOUD
from platform_launch.platforms.bare import doubt_count
from platform_launch.platforms.base import Dialect
from platform_launch.platforms.batch import COBALT, LSF, PBS
from platform_launch.platforms.clusters import DETERMINED, LEPTON, MODELARTS
from platform_launch.platforms.google import GKE_TPU, VERTEX
from platform_launch.platforms.kubeflow import PYTORCHJOB, RUNAI, TRAINER_V2
from platform_launch.platforms.kubernetes import DOWNWARD, INDEXED_JOB, JOBSET, LWS
from platform_launch.platforms.local import LOCAL
from platform_launch.platforms.mpi import FLUX, HYDRA, MPIJOB, MVAPICH, OPENMPI, PALS
from platform_launch.platforms.openpai import OPENPAI
from platform_launch.platforms.procguard import PROCGUARD
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
    PROCGUARD.because("its agent may run inside any other job, whose place is not the training's"),
    TORCHX.because("sits on Volcano, Kueue, Batch or SLURM, whose indices it does not follow"),
    tables.SKYPILOT.because("runs over Ray, Kubernetes or SLURM and knows its own nodes best"),
    tables.DSTACK.because("runs over clouds, Kubernetes or SLURM and knows its own nodes best"),
    LEPTON.because("its helper exports WORLD_SIZE and NODE_RANK too, which others would misread"),
    DETERMINED.because("its agent may run under SLURM or Kubernetes, whose ranks are not its own"),
    SAGEMAKER.because("a brand; its MPI launcher sets OMPI_*, which does not know the hosts"),
    AWS_BATCH.because("a brand; nothing else sets its names"),
    AZUREML.because("a brand; uses the four bare names and OMPI_* with its own meaning"),
    VERTEX.because("a brand; nothing else sets its names"),
    MODELARTS.because("before Volcano, which it is built on: VC_* with MA_* means ModelArts"),
    VOLCENGINE_MLP.because("a brand; nothing else sets its names"),
    ARNOLD.because("a brand; nothing else sets its names"),
    tables.SENSECORE.because("a brand; its bare WORLD_SIZE and RANK are inconsistent"),
    tables.KUBEBRAIN.because("a brand; sets NODE_RANK and MASTER_ADDR too, which Lightning would claim"),
    AIHC.because("a brand on the four bare names"),
    tables.TI_ONE.because("a brand on the four bare names"),
    tables.TAIJI.because("generic names, but only together with CHIEF_IP or NODE_IP_LIST"),
    PADDLECLOUD.because("a brand; nothing else sets its names"),
    tables.NGC.because("a brand; nothing else sets its names"),
    OPENPAI.because("a brand; nothing else sets its names"),
    LWS.because("before GKE TPU: without a TPU in the leader the two ranks differ by one"),
    GKE_TPU.because("after LeaderWorkerSet, which counts the whole group"),
    RUNAI.because("a PyTorchJob that also says the GPUs"),
    TRAINER_V2.because("PET_* count nodes; before JobSet and Indexed Job, which it is built on"),
    PYTORCHJOB.because("PET_* count nodes where WORLD_SIZE may count processes"),
    VOLCANO.because(
        "after PyTorchJob, which Volcano only schedules; its plugin's RANK before its task index"
    ),
    MVAPICH.because("a step launcher: what started this process last knows its rank best"),
    OPENMPI.because("a step launcher; hosts come from the batch system around it"),
    FLUX.because("a step launcher that unsets SLURM_* and PMI_* of what is around it"),
    PALS.because("before SLURM and PBS, which it runs under: only it says the node's index"),
    SLURM.because("a step says both rank and hosts; it also sets PMI_*"),
    LSF.because("an allocation: each node finds itself in a list"),
    COBALT.because("an allocation: each node finds itself in a list"),
    PBS.because("an allocation, after PALS, which it starts"),
    HYDRA.because("last of the launchers: Flux, PALS and SLURM set PMI_* as well"),
    tables.PAI_DLC.because("a weak mark beside the four bare names"),
    bare.MOSAICML.because("unbranded; WORLD_SIZE counts processes, told by LOCAL_WORLD_SIZE without RANK"),
    tables.DLROVER.because("says nodes and rank but no address"),
    bare.LIGHTNING.because("unbranded; without WORLD_SIZE, nodes from NNODES"),
    bare.BARE_MASTER_QUAD.because("no other mark: read as nodes"),
    MPIJOB.because("a role, no node of this launcher"),
    JOBSET.because("before Indexed Job: the index restarts in every child Job"),
    INDEXED_JOB.because("says a rank only"),
    tables.RAY.because("has no node index; others may sit on it"),
    tables.MODAL.because("says its topology through an API only"),
    DOWNWARD.because("any pod: what users project, else one node"),
)
"""All dialects in the order they are tried, each with the reason for its place."""

_BY_NAME = {dialect.name: dialect for dialect in (*PLATFORMS, LOCAL)}
_FROM_FLAGS = "flags"


def detect(environment: Environment, overrides: Overrides | None = None) -> Topology:
    """Return this node's place in the job, by its variables and flags alone.

    Raises TopologyError when the variables contradict each other, leave a field open that no flag supplies,
    or show that this command was started once per process; its ``reading`` holds what could be read. Raises
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
    """Return what a platform is called by people; the name itself where it is none of a dialect."""
    return next((dialect.title for dialect in PLATFORMS if dialect.name == name), name)


def _choose(environment: Environment, name: str | None) -> Dialect:
    """Return the platform the user named, or the first whose marks are there."""
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
            reading.note("level", error)
    return reading


def _from_flags(reading: Reading) -> Reading:
    """Start over from flags alone: what a worker inherited is its parent's rendezvous, not this one's."""
    level = reading.problems.get("level")
    warnings: list[str] = (
        [Phrase("{message}; the flags say otherwise and are believed", message=level.message)]
        if level
        else []
    )
    return Reading(_FROM_FLAGS, warnings=warnings)
