"""How a run on several nodes ended, as the command says it at last."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from platform_launch.events import Event, event


@dataclass(frozen=True)
class RunEnding:
    """``nodes`` of ``nnodes`` took part.

    ``first_failed`` names the node whose failure the others followed, empty where none failed first.
    """

    exit_code: int
    nodes: int
    nnodes: int
    duration_s: float
    first_failed: str = ""

    def as_event(self) -> Event:
        """Return what to say of it."""
        fields: dict[str, object] = {
            "exit_code": self.exit_code,
            "nodes": self.nodes,
            "nnodes": self.nnodes,
            "duration": _shown(self.duration_s),
            "first_failed": self.first_failed,
        }
        if not self.exit_code:
            return event("nodes-run-finished", **fields)
        return event("nodes-run-failed" if self.first_failed else "nodes-run-stopped", **fields)


def _shown(duration_s: float) -> str:
    return f"{duration_s:.1f} s" if duration_s < 120 else str(timedelta(seconds=round(duration_s)))
