"""One job description → text for every scheduler: sbatch, Kubernetes, Kubeflow, Volcano, KubeBrain.

Pure: a description is read, a :class:`Job` is checked, :func:`render` returns text. Nothing is submitted.
"""

from __future__ import annotations

import shlex
from types import ModuleType

from platform_launch.errors import UsageError, shown
from platform_launch.jobs import (
    jobset,
    kubebrain,
    kubernetes,
    leaderworkerset,
    names,
    pytorchjob,
    slurm,
    trainjob,
    volcano,
)
from platform_launch.jobs.description import KEYS
from platform_launch.jobs.job import Job
from platform_launch.text import Phrase

__all__ = ["TARGETS", "Job", "next_steps", "render", "submit", "unused"]

TARGETS: dict[str, ModuleType] = {
    "slurm": slurm,
    "kubernetes": kubernetes,
    "jobset": jobset,
    "pytorchjob": pytorchjob,
    "trainjob": trainjob,
    "leaderworkerset": leaderworkerset,
    "volcano": volcano,
    "kubebrain": kubebrain,
}
"""Name → module with ``render(job, notes)`` and ``NOT_USED``, the fields it has no place for."""

WITH_SPARES = ("slurm", "kubernetes", "jobset", "leaderworkerset")
"""Targets whose controllers can leave the other nodes alone when one is lost."""

_FIXED = ("kubernetes", "jobset", "pytorchjob", "trainjob", "volcano")
"""Targets whose jobs keep what they run once they exist: the server refuses a change, or ignores it."""


def submit(target: str, file: str) -> str:
    """Return the command that submits a file."""
    return f"{'sbatch' if target == 'slurm' else 'kubectl apply -f'} {shlex.quote(file)}"


def next_steps(target: str, file: str) -> list[str]:
    """Return what to do with a file that was written."""
    steps: list[str] = [Phrase("submit it with: {command}", command=submit(target, file))]
    if target == "trainjob":
        steps.append(
            Phrase(
                "if the TrainJob is refused because its TrainingRuntime is not known yet, submit the file "
                "again"
            )
        )
    steps += [
        Phrase("what was submitted cannot be changed; to replace it: {command}", command=command)
        for command in replace(target, file)
    ]
    return steps


def replace(target: str, file: str) -> list[str]:
    """Return the command that replaces a submitted job after its pods had their grace period, if one must."""
    if target not in _FIXED:
        return []
    delete = f"kubectl delete --cascade=foreground --ignore-not-found -f {shlex.quote(file)}"
    return [f"{delete} && {submit(target, file)}"]


def render(job: Job, target: str) -> str:
    """Return the text that submits ``job`` to ``target``, and name what has no place there."""
    if target not in TARGETS:
        raise UsageError(
            Phrase(
                "target {target}: expected one of {targets}", target=shown(target), targets=", ".join(TARGETS)
            )
        )
    if target != "slurm":
        names.check_name(job.name)
    if job.spares and target not in WITH_SPARES:
        raise UsageError(
            Phrase(
                "target {target} with spares: its controller ends or starts all nodes when one is lost",
                target=target,
            ),
            Phrase("expected one of {targets}, or no spares", targets=", ".join(WITH_SPARES)),
        )
    left_out = unused(job, target)
    notes = (
        f"- {target} cannot express these settings of the job: {', '.join(left_out)}.\n" if left_out else ""
    )
    text: str = TARGETS[target].render(job, notes)
    return text


def unused(job: Job, target: str) -> tuple[str, ...]:
    """Return the settings of the job, by their keys, that ``target`` cannot express."""
    plain = Job(name=job.name, entrypoint=job.entrypoint)
    with_runtime = target == "trainjob" and job.runtime is not None
    fields = trainjob.NOT_USED_WITH_RUNTIME if with_runtime else TARGETS[target].NOT_USED
    return tuple(KEYS[field] for field in fields if getattr(job, field) != getattr(plain, field))
