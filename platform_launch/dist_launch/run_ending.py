"""How a run on several nodes ended, for the command's last line."""

from __future__ import annotations

from platform_launch.events import Event, event


def run_ending(exit_code: int, nodes: int, nnodes: int, duration_s: float, first_failed: str = "") -> Event:
    """Return the last line of a run on ``nodes`` of ``nnodes`` nodes.

    ``first_failed`` is the node whose failure stopped the others, or empty.
    """
    how = "finished" if not exit_code else "failed" if first_failed else "stopped"
    return event(
        f"nodes-run-{how}",
        exit_code=exit_code,
        nodes=nodes,
        nnodes=nnodes,
        duration_s=round(duration_s, 3),
        first_failed=first_failed,
    )
