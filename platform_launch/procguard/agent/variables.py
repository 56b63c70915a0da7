"""The environment of a training: the agent's own, less what says another place, and the place that is given.

All GPUs stay visible and LOCAL_RANK selects one, as with torchrun: a process that sees a single GPU cannot
use its neighbours' memory directly, which NCCL does.
"""

from __future__ import annotations

from collections.abc import Mapping

from platform_launch.environment import Environment
from platform_launch.procguard.agent.records import MARKER
from platform_launch.procguard.api.wire import JOIN_TOKEN, PLACE_VARIABLES, WorkerOrder

_SESSION_TOKEN = "PROCGUARD_TOKEN"  # noqa: S105 - a variable's name: what ctl acts for a person with

_ONE_PLACE = PLACE_VARIABLES | {"BASE_RANK", "NODE_COUNT", "NUM_NODES", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"}
# Launchers and batch systems whose variables training libraries (accelerate, Lightning, JAX, this launcher)
# take for the process's own place: the agent may have been started by one, its trainings are not.
_FAMILIES = (
    "FLUX_", "GROUP_", "JSM_", "MV2_COMM_WORLD_", "OMPI_", "PALS_", "PET_", "PMIX_", "PMI_", "PRTE_",
    "ROLE_", "SLURM_", "TORCHELASTIC_",
)  # fmt: skip
_SECRET = frozenset({JOIN_TOKEN, _SESSION_TOKEN})


def training_variables(agent: Environment, order: WorkerOrder, run: str) -> dict[str, str]:
    """Return the whole environment of a training. ``run`` goes into MARKER."""
    kept = {name: value for name, value in agent.inherited().items() if not _contradicts(name)}
    return {"PYTHONUNBUFFERED": "1", **kept, **order.variables, **order.environment, MARKER: run}


def supervisor_variables(agent: Environment) -> dict[str, str]:
    """Return the environment of a supervisor: no secret, and not the mark of a run."""
    return {name: value for name, value in agent.inherited().items() if name not in {*_SECRET, MARKER}}


def not_a_place(place: Mapping[str, str]) -> list[str]:
    """Return the names that a server may not set, or whose value no environment can hold."""
    return sorted(name for name, value in place.items() if name not in PLACE_VARIABLES or "\0" in value)


def _contradicts(name: str) -> bool:
    return name in _ONE_PLACE or name in _SECRET or name.startswith(_FAMILIES)
