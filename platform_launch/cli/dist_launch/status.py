"""``dist-launch status``: which nodes are there, and what runs on them."""

from __future__ import annotations

from typing import Any

import click

from platform_launch.cli.dist_launch import options as own
from platform_launch.cli.flags import json_or_table
from platform_launch.cli.output import print_json
from platform_launch.errors import NodesAbsentError
from platform_launch.text import counted


@click.command("status")
@json_or_table
@own.ssh_options
def command(form: str, **flags: Any) -> int:
    """Say for each node whether it can be reached and waits, what runs there since when, and its GPUs."""
    cluster, answered = own.ask_nodes(flags, "status")
    if form == "json":
        print_json(answered)
    else:
        rows = [("node", "host", "address", "state", "runs", "since", "GPU memory")]
        for node in answered:
            member = cluster.members[node["rank"]]
            rows.append((member.alias, member.host, member.address, *_cells(node)))
        own.table(rows)
        for node in answered:
            for problem in [node["problem"]] if "problem" in node else node["answer"]["problems"]:
                click.echo(f"{cluster.members[node['rank']].place}: {problem}", err=True)
    return NodesAbsentError.exit_code if any("problem" in node for node in answered) else 0


def _cells(node: dict[str, Any]) -> tuple[str, str, str, str]:
    if "problem" in node:
        return "unreachable", "?", "", ""
    answer = node["answer"]
    jobs = [f"{job['name']}: {counted(job['processes'], 'process')}" for job in answer["jobs"]]
    since = [job["since"] for job in answer["jobs"]]
    return (
        "waits" if answer["wait"] is not None else "wait has ended",
        "; ".join(jobs) or "nothing",
        "; ".join(since),
        _gpus(answer["gpus"]),
    )


def _gpus(gpus: list[dict[str, Any]]) -> str:
    if not gpus:
        return "no GPU"
    used = sum(gpu["used_gib"] for gpu in gpus)
    size = sum(gpu["memory_gib"] or 0.0 for gpu in gpus)
    return f"{used:.0f} of {size:.0f} GiB in use on {len(gpus)}"
