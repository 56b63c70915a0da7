"""One job description → text for every scheduler: sbatch, Kubernetes, Kubeflow, Volcano, KubeBrain.

A description is read, a :class:`Job` is checked, :func:`render` returns text. Nothing is submitted.
"""

from __future__ import annotations

import shlex
from dataclasses import replace as changed
from types import ModuleType
from typing import Any

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
from platform_launch.text import Phrase, joined

__all__ = ["TARGETS", "Job", "check_target", "next_steps", "render", "submit", "unused_notes"]

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
"""Name → module with ``render(job, notes)`` and ``NOT_USED``, the fields that it cannot express."""

WITH_SPARES = ("slurm", "kubernetes", "jobset", "leaderworkerset")
"""Targets whose controllers can keep the other nodes running when one is lost."""

_FIXED = ("kubernetes", "jobset", "pytorchjob", "trainjob", "volcano")
"""Targets whose jobs cannot be changed after they were submitted: the server refuses or ignores it."""


def submit(target: str, file: str) -> str:
    """Return the command that submits a file."""
    return f"{'sbatch' if target == 'slurm' else 'kubectl apply -f'} {shlex.quote(file)}"


def next_steps(target: str, file: str) -> list[str]:
    """Return what to do with a written file."""
    steps: list[str] = [Phrase("submit it with: {command}", command=submit(target, file))]
    if target == "trainjob":
        steps.append(
            Phrase(
                "if the TrainJob is refused because its TrainingRuntime is not known yet, submit the file "
                "again"
            )
        )
    steps += [
        Phrase("a submitted job cannot be changed; to replace it: {command}", command=command)
        for command in replace(target, file)
    ]
    return steps


def replace(target: str, file: str) -> list[str]:
    """Return the command that replaces a submitted job; none if applying the file again changes the job.

    It waits until the pods of the old job have ended.
    """
    if target not in _FIXED:
        return []
    delete = f"kubectl delete --cascade=foreground --ignore-not-found -f {shlex.quote(file)}"
    return [f"{delete} && {submit(target, file)}"]


def check_target(target: str) -> None:
    """Raise UsageError for a name that is not a target. Other platforms start any command, without a file."""
    if target in TARGETS:
        return
    from difflib import get_close_matches

    from platform_launch.platforms import title_of

    name = target.strip().lower().replace("-", "_")
    title = title_of(name)
    near = get_close_matches(title.lower(), TARGETS, n=1)
    hint: str = "platform-launch job --help describes them"
    if near:
        hint = Phrase("did you mean {near}?", near=near[0])
    elif title != name:
        hint = Phrase(
            "{title} needs no file: let it start platform-launch run --script train.py on every node",
            title=title,
        )
    raise UsageError(
        Phrase("target {target}: expected one of {targets}", target=shown(target), targets=joined(TARGETS)),
        hint,
    )


def render(job: Job, target: str) -> str:
    """Return the text that submits ``job`` to ``target``; what it cannot express is named there."""
    check_target(target)
    if target != "slurm":
        names.check_name(job.name)
    if job.may_lose and target not in WITH_SPARES:
        raise UsageError(
            Phrase(
                "target {target} cannot have spares or min_nodes: its controller stops or restarts all nodes "
                "when one is lost",
                target=target,
            ),
            Phrase("expected one of {targets}, or neither", targets=joined(WITH_SPARES)),
        )
    left_out = _unused(job, target)
    text: str = TARGETS[target].render(changed(job, **left_out), unused_notes(job, target))
    return text


def unused_notes(job: Job, target: str) -> list[Phrase]:
    """Return a message that names the settings of the job, by their keys, that ``target`` cannot express."""
    keys = joined(KEYS[field] for field in _unused(job, target))
    return (
        [Phrase("{target} cannot express these settings: {keys}", target=target, keys=keys)] if keys else []
    )


def _unused(job: Job, target: str) -> dict[str, Any]:
    """Return the fields that the job sets although ``target`` cannot express them, with their defaults."""
    plain = Job(name=job.name, entrypoint=job.entrypoint)
    with_runtime = target == "trainjob" and job.runtime is not None
    fields = trainjob.NOT_USED_WITH_RUNTIME if with_runtime else TARGETS[target].NOT_USED
    return {
        field: getattr(plain, field)
        for field in fields
        if getattr(job, field) != getattr(plain, field) and not (field == "retries" and job.may_lose)
    }
