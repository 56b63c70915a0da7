"""``dist-launch hosts``: the nodes that met."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from platform_launch.cli.dist_launch import options as own
from platform_launch.environment import Environment


@click.command("hosts")
@own.json_or_table
def command(form: str) -> int:
    """List the nodes of the cluster that waits here, on any of them."""
    _, cluster = own.cluster(Environment.of_this_process())
    if form == "json":
        click.echo(json.dumps([asdict(member) for member in cluster.members], indent=2))
        return 0
    rows = [("node", "host", "address", "SSH", "")]
    for member in cluster.members:
        here = "this node" if member.rank == cluster.rank else ""
        rows.append((member.alias, member.host, member.address, f"{member.ssh_user}:{member.ssh_port}", here))
    own.table(rows)
    return 0
