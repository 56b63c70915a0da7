"""How a run on several nodes ended, as the command says it at last."""

from __future__ import annotations

from platform_launch.events import Event, event


def run_ending(exit_code: int, nodes: int, nnodes: int, duration_s: float, first_failed: str = "") -> Event:
    """Return what to say of a run in which ``nodes`` of ``nnodes`` took part.

    ``first_failed`` names the node whose failure the others followed, empty where none failed first.
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
