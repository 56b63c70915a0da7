"""One job description → text for every scheduler: sbatch, Kubernetes, Kubeflow, Volcano, KubeBrain.

Pure: a description is read, a :class:`Job` is checked, :func:`render` returns text. Nothing is submitted.
"""

from __future__ import annotations

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

__all__ = ["SUBMIT", "TARGETS", "Job", "render", "unused"]

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

SUBMIT = {target: "sbatch" if target == "slurm" else "kubectl apply -f" for target in TARGETS}
"""Target → the command that submits its file."""


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
    return tuple(
        KEYS[field] for field in TARGETS[target].NOT_USED if getattr(job, field) != getattr(plain, field)
    )
