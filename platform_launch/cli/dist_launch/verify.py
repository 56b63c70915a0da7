"""``dist-launch verify``: the way to every node, and what exactly fails on it."""

from __future__ import annotations

import json
from typing import Any

import click

from platform_launch.cli.dist_launch import options as own
from platform_launch.dist_launch.broker_client import send_request
from platform_launch.environment import Environment
from platform_launch.errors import NodesAbsentError

_WORKS = "reached, host key as it joined with, key accepted, agent answers, wait lives, files can be written"


@click.command("verify")
@own.json_or_table
@own.ssh_options
def command(form: str, **flags: Any) -> int:
    """Log in to every node as a run would, this one too, and say what works or fails."""
    env = Environment.of_this_process()
    ssh = own.ssh(env, flags)
    folder, cluster = own.cluster(env)
    answered = send_request(folder, {"do": "verify", "ssh": own.as_request(ssh)})["nodes"]
    failed = {node["rank"]: _problems(node) for node in answered if _problems(node)}
    if form == "json":
        document = [{"rank": node["rank"], "problems": failed.get(node["rank"], [])} for node in answered]
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        for node in answered:
            for line in failed.get(node["rank"], [_WORKS]):
                word = "FAILS" if node["rank"] in failed else "ok"
                click.echo(f"{cluster.members[node['rank']].place}: {word}: {line}")
    return NodesAbsentError.exit_code if failed else 0


def _problems(node: dict[str, Any]) -> list[str]:
    return [node["problem"]] if "problem" in node else list(node["answer"]["problems"])
