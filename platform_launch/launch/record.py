"""The launch record: plan, versions and outcome of one launch, as JSON beside its log."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from platform_launch import __version__, files
from platform_launch.confidential import masked, masked_arguments
from platform_launch.hardware import packages
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.project import git_revision
from platform_launch.text import iso_utc

# Kubernetes shows what a container writes here as the reason of its end; it keeps 4096 bytes.
_TERMINATION_LOG = Path("/dev/termination-log")
_TERMINATION_BYTES = 4096

PACKAGES = ("torch", "accelerate", "deepspeed", "transformers", "jax", "nvidia-ml-py")


def write_record(plan: LaunchPlan, started: datetime, outcome: Mapping[str, object]) -> Path | None:
    """Write the record of a launch that has ended; return its path, or None when it cannot be written.

    A record is a convenience: whatever an argument or a disk is like, it never stops a launch.
    """
    path = plan.log_path.with_suffix(".json")
    document = {
        **_without_secrets(plan.as_dict()),
        "versions": versions(),
        "git_revision": git_revision(plan.training.program.source),
        "started": iso_utc(started),
        "ended": iso_utc(),
        "outcome": outcome,
    }
    try:
        text = json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        # What is no UTF-8 becomes an escape of JSON's own.
        files.write_whole(path, text.encode(errors="backslashreplace"), mode=files.SHARED)
    except (OSError, ValueError):
        return None
    return path


def _without_secrets(plan: dict[str, Any]) -> dict[str, Any]:
    """Mask what looks like a secret: a record is read by others than its writer."""
    variables = {
        group: [{**one, "value": masked(one["name"], one["value"])} for one in plan[group]]
        for group in ("env", "kept")
    }
    program = {**plan["training"]["program"]}
    program["arguments"] = masked_arguments(program["arguments"])
    training = {**plan["training"], "program": program}
    return {**plan, **variables, "training": training, "argv": masked_arguments(plan["argv"])}


def first_failed(records: Iterable[Path]) -> int | None:
    """Return the node that failed first, by the records of one launch; None where none says so.

    Nodes that met say the same; of those that did not meet, the one whose training was the shortest.
    """
    failed: list[tuple[float, int]] = []
    for record in records:
        with suppress(OSError, ValueError, KeyError, TypeError):  # another launch may be writing there
            outcome = json.loads(record.read_text(encoding="utf-8"))["outcome"]
            failed.append((float(outcome["duration_s"]), int(outcome["first_failed_node"])))
    return min(failed)[1] if failed else None


def write_termination_message(text: str) -> None:
    """Leave the reason of a failure where Kubernetes looks for it; elsewhere there is no such file."""
    with suppress(OSError):
        if _TERMINATION_LOG.exists():
            _TERMINATION_LOG.write_bytes(text.encode(errors="backslashreplace")[:_TERMINATION_BYTES])


def versions() -> dict[str, str]:
    """Return the versions of Python and of a training's main packages, without importing them."""
    own = {"platform-launch": __version__, "python": sys.version.split()[0]}
    return {**own, **packages.versions(PACKAGES)}
