"""A description → the job for one target, with defaults for what its author left out."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from platform_launch.errors import UsageError
from platform_launch.health import quarantine
from platform_launch.jobs.description import Description, Value, to_job
from platform_launch.jobs.job import PROGRAM, Job
from platform_launch.jobs.manifest import Document
from platform_launch.plan.program import nothing_to_run
from platform_launch.project import project_root
from platform_launch.text import Phrase

ENTRYPOINT = "start_multinode_platform.sh"
_LONGEST_GRACE_S = 86_400
_KILL_MARGIN_S = 35  # after the launcher's own grace period: its last lines, the log, the launch record


def build(description: Description, target: str, grace_s: float, patch: Document | None = None) -> Job:
    """Return the job. ``grace_s``: the launcher's grace period; ``patch``: as in :func:`to_job`.

    Nodes that the quarantine file holds by now are excluded if it can be read here. Raises UsageError for a
    grace period that no scheduler waits for and for a job without anything to run, InputError for what cannot
    be used.
    """
    if not grace_s <= _LONGEST_GRACE_S:
        raise UsageError(
            Phrase(
                "--grace-period {grace_s}: expected at most {longest_s} seconds",
                grace_s=grace_s,
                longest_s=_LONGEST_GRACE_S,
            )
        )
    entrypoint = own_entrypoint() if target == "slurm" else PROGRAM
    complete = {"entrypoint": entrypoint, **_with_quarantined(description)}
    job = to_job(complete, math.ceil(grace_s) + _KILL_MARGIN_S, patch)
    if not job.names_program:
        raise nothing_to_run()
    return job


def own_entrypoint() -> str:
    """Return what starts this very launcher: the entrypoint of a checkout, or the installed program."""
    script = project_root() / ENTRYPOINT
    if not script.is_relative_to(Path(__file__).resolve().parents[1]) and script.is_file():
        return str(script)
    program = Path(sys.executable).with_name(PROGRAM)
    return str(program) if program.is_file() else PROGRAM


def _with_quarantined(description: Description) -> dict[str, Value]:
    file = description.get("quarantine")
    if not isinstance(file, str) or not file:
        return dict(description)
    held = [node.node for node in quarantine.read(Path(file))]
    excluded = [*description.get("exclude", []), *held]
    return {**description, "exclude": list(dict.fromkeys(excluded))} if held else dict(description)
