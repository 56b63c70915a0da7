"""``dist-launch kill``: stop the jobs on all nodes, and report it."""

from __future__ import annotations

from typing import Any

import click

from platform_launch.cli.dist_launch import options as own
from platform_launch.cli.flags import seconds
from platform_launch.console.languages import translate
from platform_launch.errors import NodesAbsentError
from platform_launch.supervise.watch import DEFAULT_GRACE_S
from platform_launch.text import Phrase, counted


@click.command("kill")
@click.option("--force", is_flag=True, help="Send SIGKILL at once, without a grace period.")
@click.option("--name", help="Only the job of this name (default: every job).")
@seconds("--grace-period", "grace_s", least=0, default=DEFAULT_GRACE_S, text="Time from SIGTERM to SIGKILL.")
@own.ssh_options
def command(force: bool, name: str | None, grace_s: float, **flags: Any) -> int:
    """Stop all processes of the jobs on all nodes, including detached ones. `wait` keeps running."""
    cluster, answered = own.ask_nodes(flags, "kill", force=force, name=name, grace_s=grace_s)
    worst = 0
    for node in answered:
        place = cluster.members[node["rank"]].place
        if "problem" in node:
            problem = Phrase("{place}: not reached: {problem}", place=place, problem=node["problem"])
            click.echo(translate(problem), err=True)
            worst = NodesAbsentError.exit_code
            continue
        for line in _lines(node["answer"]):
            click.echo(translate(Phrase("{place}: {problem}", place=place, problem=Phrase.of(line))))
        if node["answer"]["left"]:
            worst = worst or 1
    return worst


def _lines(answer: dict[str, Any]) -> list[str]:
    ended = [Phrase("ended pid {pid} ({command})", **process) for process in answer["ended"]]
    stuck = [
        Phrase("alive after SIGKILL, stuck in a driver or file system: pid {pid} ({command})", **process)
        for process in answer["left"]
    ]
    return [*(ended or [Phrase("nothing ran")]), *stuck, *_gpu_lines(answer["gpus"])]


def _gpu_lines(gpus: dict[str, Any]) -> list[str]:
    if gpus["problem"]:
        return [gpus["problem"]]
    if gpus["held"]:
        return list(gpus["held"])
    return (
        [Phrase("GPU memory is free ({gpus})", gpus=counted(gpus["count"], "GPU"))] if gpus["count"] else []
    )
