"""The request of ``dist-launch run``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from platform_launch.text import Phrase, joined


@dataclass(frozen=True)
class JobRequest:
    """A script for all nodes. Paths are absolute; ``nodes`` None means all; ``variables`` are added on each.

    ``interpreter`` runs the script; it is empty for a script that is executable. ``stamp`` is the time in the
    names of the logs, ``language`` that of the lines about the job.
    """

    name: str
    nodes: str | None
    script: str
    interpreter: tuple[str, ...]
    arguments: tuple[str, ...]
    directory: str
    variables: Mapping[str, str]
    grace_s: float
    keep_going: bool
    fold: bool
    log_folder: str
    stamp: str
    language: str

    def reminder_about_nodes(self, chosen: int, nnodes: int) -> str:
        """Return the reminder about the variables of a job on some nodes; empty for one on all nodes."""
        if chosen == nnodes:
            return ""
        platforms_own = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if name not in self.variables]
        if not platforms_own:
            return Phrase("on {chosen} of {nnodes} nodes", chosen=chosen, nnodes=nnodes)
        return Phrase(
            (
                "runs on {chosen} of {nnodes} nodes, but {names} still describe all {nnodes}: a job "
                "that reads them waits for the others"
            ),
            chosen=chosen,
            nnodes=nnodes,
            names=joined(platforms_own),
        )
