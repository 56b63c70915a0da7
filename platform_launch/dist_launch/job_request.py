"""What ``dist-launch run`` asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from platform_launch.text import Phrase


@dataclass(frozen=True)
class JobRequest:
    """A script for all nodes. Paths are absolute; ``nodes`` None means all; ``variables`` are added on each.

    ``interpreter`` stands before the script, empty for one that runs by itself. ``stamp`` is the time in the
    names of the logs.
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

    def note_on_nodes(self, chosen: int, nnodes: int) -> str:
        """Return what a job on some of the nodes should know of its variables; empty for one on all."""
        if chosen == nnodes:
            return ""
        kept = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if name not in self.variables]
        if not kept:
            return Phrase("on {chosen} of {nnodes} nodes", chosen=chosen, nnodes=nnodes)
        return Phrase(
            "on {chosen} of {nnodes} nodes, where {kept} stay as for all {nnodes}: a training that reads "
            "them waits for the others",
            chosen=chosen,
            nnodes=nnodes,
            kept=", ".join(kept),
        )
