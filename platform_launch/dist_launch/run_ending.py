"""How a run on several nodes ended, as the command says it at last."""

from __future__ import annotations

from datetime import timedelta

from platform_launch.events import Event, event


def run_ending(exit_code: int, nodes: int, nnodes: int, duration_s: float, first_failed: str = "") -> Event:
    """Return what to say of a run in which ``nodes`` of ``nnodes`` took part.

    ``first_failed`` names the node whose failure the others followed, empty where none failed first.
    """
    how = "finished" if not exit_code else "failed" if first_failed else "stopped"
    lasted = f"{duration_s:.1f} s" if duration_s < 120 else str(timedelta(seconds=round(duration_s)))
    return event(
        f"nodes-run-{how}",
        exit_code=exit_code,
        nodes=nodes,
        nnodes=nnodes,
        duration=lasted,
        first_failed=first_failed,
    )
