"""``dist-launch status``: which nodes are up, and what runs on them."""

from __future__ import annotations

from typing import Any

import click

from platform_launch.cli.dist_launch import options as own
from platform_launch.cli.flags import json_or_table
from platform_launch.cli.output import print_json
from platform_launch.console.languages import translate
from platform_launch.errors import NodesAbsentError
from platform_launch.text import Phrase, counted, joined

_TITLES = (
    *(Phrase("node"), Phrase("host"), Phrase("address"), Phrase("state")),
    *(Phrase("runs"), Phrase("since"), Phrase("GPU memory")),
)


@click.command("status")
@json_or_table
@own.ssh_options
def command(form: str, **flags: Any) -> int:
    """Show whether each node can be reached and waits, what runs there and since when, and its GPUs."""
    cluster, answered = own.ask_nodes(flags, "status")
    if form == "json":
        print_json(answered)
    else:
        rows: list[tuple[str, ...]] = [_TITLES]
        for node in answered:
            member = cluster.members[node["rank"]]
            rows.append((member.alias, member.host, member.address, *_cells(node)))
        own.table(rows)
        for node in answered:
            for problem in [node["problem"]] if "problem" in node else node["answer"]["problems"]:
                place = cluster.members[node["rank"]].place
                told = Phrase("{place}: {problem}", place=place, problem=Phrase.of(problem))
                click.echo(translate(told), err=True)
    return NodesAbsentError.exit_code if any("problem" in node for node in answered) else 0


def _cells(node: dict[str, Any]) -> tuple[str, str, str, str]:
    if "problem" in node:
        return Phrase("unreachable"), "?", "", ""
    answer = node["answer"]
    jobs = [
        Phrase("{name}: {processes}", name=job["name"], processes=counted(job["processes"], "process"))
        for job in answer["jobs"]
    ]
    since = [job["since"] for job in answer["jobs"]]
    return (
        Phrase("waits") if answer["wait"] is not None else Phrase("wait has ended"),
        joined(jobs, "; ") or Phrase("nothing"),
        "; ".join(since),
        _gpus(answer["gpus"]),
    )


def _gpus(gpus: list[dict[str, Any]]) -> str:
    if not gpus:
        return Phrase("no GPU")
    used = sum(gpu["used_gib"] for gpu in gpus)
    size = sum(gpu["memory_gib"] or 0.0 for gpu in gpus)
    return Phrase("{used:.0f} of {size:.0f} GiB in use on {gpus}", used=used, size=size, gpus=len(gpus))
