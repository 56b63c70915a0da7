"""``dist-launch verify``: check the connection to every node, and report what exactly fails."""

from __future__ import annotations

from typing import Any

import click

from platform_launch.cli.dist_launch import options as own
from platform_launch.cli.flags import json_or_table
from platform_launch.cli.output import print_json
from platform_launch.console.languages import translate
from platform_launch.errors import NodesAbsentError
from platform_launch.text import Phrase

_WORKS = Phrase(
    "reachable, host key unchanged, key accepted, agent responds, wait is running, files writable"
)


@click.command("verify")
@json_or_table
@own.ssh_options
def command(form: str, **flags: Any) -> int:
    """Log in to every node as `run` does, including this one, and report what works or fails."""
    cluster, answered = own.ask_nodes(flags, "verify")
    failed = {node["rank"]: _problems(node) for node in answered if _problems(node)}
    if form == "json":
        document = [{"rank": node["rank"], "problems": failed.get(node["rank"], [])} for node in answered]
        print_json(document)
    else:
        for node in answered:
            for line in failed.get(node["rank"], [_WORKS]):
                word = Phrase("FAILS") if node["rank"] in failed else Phrase("ok")
                place = cluster.members[node["rank"]].place
                found = Phrase("{name}: {found}", name=word, found=Phrase.of(line))
                click.echo(translate(Phrase("{place}: {problem}", place=place, problem=found)))
    return NodesAbsentError.exit_code if failed else 0


def _problems(node: dict[str, Any]) -> list[str]:
    return [node["problem"]] if "problem" in node else list(node["answer"]["problems"])
