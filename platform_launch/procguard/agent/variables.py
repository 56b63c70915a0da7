"""The environment of a run: the agent's own without foreign ranks, the group's variables and the rank.

All GPUs stay visible and LOCAL_RANK selects one, as with torchrun: a process that sees a single GPU cannot
access its neighbours' memory directly, which NCCL does.
"""

from __future__ import annotations

from collections.abc import Mapping

from platform_launch.environment import Environment
from platform_launch.procguard.agent.records import MARKER
from platform_launch.procguard.api.wire import JOIN_TOKEN, PLACE_VARIABLES, WorkerOrder

_SESSION_TOKEN = "PROCGUARD_TOKEN"  # noqa: S105 - a variable's name: what ctl acts for a person with

_ONE_PLACE = PLACE_VARIABLES | {"BASE_RANK", "NODE_COUNT", "NUM_NODES", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"}
# Variables of launchers and batch systems that training libraries (accelerate, Lightning, JAX, this launcher)
# read as the process's rank. They apply to the agent's own job, not to what it runs.
_FAMILIES = (
    "FLUX_", "GROUP_", "JSM_", "MV2_COMM_WORLD_", "OMPI_", "PALS_", "PET_", "PMIX_", "PMI_", "PRTE_",
    "ROLE_", "SLURM_", "TORCHELASTIC_",
)  # fmt: skip
_SECRET = frozenset({JOIN_TOKEN, _SESSION_TOKEN})


def training_variables(agent: Environment, order: WorkerOrder, run: str) -> dict[str, str]:
    """Return the whole environment of a run. ``run`` is the value of MARKER."""
    kept = {name: value for name, value in agent.inherited().items() if not _contradicts(name)}
    return {"PYTHONUNBUFFERED": "1", **kept, **order.variables, **order.environment, MARKER: run}


def supervisor_variables(agent: Environment) -> dict[str, str]:
    """Return the environment of a supervisor, without secrets and the marker of a run."""
    return {name: value for name, value in agent.inherited().items() if name not in {*_SECRET, MARKER}}


def not_a_place(place: Mapping[str, str]) -> list[str]:
    """Return the names that a server may not set, or whose value no environment can hold."""
    return sorted(name for name, value in place.items() if name not in PLACE_VARIABLES or "\0" in value)


def _contradicts(name: str) -> bool:
    return name in _ONE_PLACE or name in _SECRET or name.startswith(_FAMILIES)
