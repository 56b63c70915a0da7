"""Checks, before anything starts, whether a command is allowed and could start on this node.

A run's environment is the agent's own without foreign ranks, the group's variables and the rank. All GPUs
stay visible and LOCAL_RANK selects one, as with torchrun: a process that sees a single GPU cannot access its
neighbours' memory directly, which NCCL does.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from platform_launch.environment import Environment
from platform_launch.errors import shown
from platform_launch.hardware import names, ports
from platform_launch.procguard.agent.records import MARKER
from platform_launch.procguard.api.wire import JOIN_TOKEN, PLACE_VARIABLES, WorkerOrder
from platform_launch.sentences import Sentence, listed, sentence

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


ANY = "*"
# PATH may be tens of thousands of characters long, and the server chooses the command's length.
_LONGEST_PATH = 1000
# Shorter than the time a group waits for its workers, so that the reason is known in time.
_ANSWER_S = 15.0


def is_allowed(command: Sequence[str], allowed: Sequence[str]) -> bool:
    """Return whether a command is one of ``allowed``: equal words, with any further words after a trailing
    ``*``.

    Raises ValueError for a pattern with unbalanced quotes.
    """
    return any(_fits(tuple(command), tuple(shlex.split(pattern))) for pattern in allowed)


def _fits(command: tuple[str, ...], words: tuple[str, ...]) -> bool:
    if words[-1:] == (ANY,):
        return command[: len(words) - 1] == words[:-1]
    return command == words


def why_not(
    order: WorkerOrder,
    *,
    allowed: Sequence[str] | None,
    directory: Path,
    path: str,
) -> Sentence | None:
    """Return why an order cannot be carried out here, None if it can.

    ``path`` is the PATH of the command.
    """
    foreign = not_a_place(order.environment)
    if foreign:
        return sentence("foreign-variables", names=listed(foreign))
    if unfit := _unfit(order, allowed):
        return unfit
    if not order.command:
        return sentence("no-command")
    if any("\0" in word for word in order.command):
        return sentence("zero-byte-in-command")
    if allowed is not None and not is_allowed(order.command, allowed):
        return sentence("command-not-allowed", allowed=listed(allowed))
    directory = directory / order.directory
    path = order.variables.get("PATH", path)
    return _directory(directory) or _program(order.command[0], directory, path) or _port(order.check_port)


def _unfit(order: WorkerOrder, allowed: Sequence[str] | None) -> Sentence | None:
    """Return why the group's variables or directory are rejected: they could change what a command does."""
    wrong = [name for name, value in order.variables.items() if "\0" in value or "=" in name or not name]
    if wrong:
        return sentence("impossible-variables", names=listed(sorted(wrong)))
    if "\0" in order.directory:
        return sentence("zero-byte-in-directory")
    if allowed is not None and order.variables:
        return sentence("variables-not-allowed", names=listed(sorted(order.variables)))
    if allowed is not None and order.directory:
        return sentence("directory-not-allowed", directory=shown(order.directory))
    return None


def _directory(directory: Path) -> Sentence | None:
    if not os.path.isdir(directory):  # noqa: PTH112 - pathlib raises for a name that is too long
        return sentence("directory-missing", directory=_cut(directory))
    if not os.access(directory, os.X_OK):
        return sentence("directory-closed", directory=_cut(directory))
    return None


def _program(program: str, directory: Path, path: str) -> Sentence | None:
    if "/" in program:
        file = directory / program
        if not os.path.isfile(file):  # noqa: PTH113 - as above
            return sentence("program-missing", file=_cut(file))
        if not os.access(file, os.X_OK):
            return sentence("program-not-executable", file=_cut(file))
        return None
    if shutil.which(program, path=path) is None:
        return sentence("program-not-in-path", program=shown(program), path=_cut(path))
    return None


def _cut(path: str | Path) -> str:
    text = str(path)
    return text if len(text) <= _LONGEST_PATH else shown(text, _LONGEST_PATH)


def _port(number: int | None) -> Sentence | None:
    if number is None:
        return None
    port = ports.probe(number)
    if port.taken:
        holders = listed(port.holders) if port.holders else sentence("unseen-process")
        return sentence("port-taken", port=number, holders=holders)
    if port.problem:
        return sentence("port-unusable", port=number, problem=port.problem)
    return None


class MasterLookup:
    """Checks whether MASTER_ADDR can be resolved on this node; torch would try silently for minutes.

    The lookup runs in the background: a resolver may take minutes, and the agent's loop must not wait.
    """

    def __init__(self) -> None:
        self._master = ""
        self._inquiry: names.ResolverInquiry | None = None
        self._since = 0.0

    def why_not(self, order: WorkerOrder) -> tuple[bool, Sentence | None]:
        """Return whether the answer is known, and why the master cannot be resolved (None if it can)."""
        master = order.environment.get("MASTER_ADDR", "")
        if not master:
            return True, None
        if self._inquiry is None or self._master != master:
            self._master, self._inquiry, self._since = master, names.addresses_of(master), time.monotonic()
        answer = self._inquiry.answer_by(0.0)
        if answer.late and time.monotonic() - self._since < _ANSWER_S:
            return False, None
        self._inquiry = None
        if not answer.failure:
            return True, None
        return True, sentence("master-unresolved", master=shown(master), problem=answer.failure)
