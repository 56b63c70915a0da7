"""``dist-launch hosts``: the nodes of the cluster."""

from __future__ import annotations

from dataclasses import asdict

import click

from platform_launch.cli.dist_launch import options as own
from platform_launch.cli.flags import json_or_table
from platform_launch.cli.options import lang_option
from platform_launch.cli.output import print_json
from platform_launch.environment import Environment
from platform_launch.text import Phrase


@click.command("hosts")
@json_or_table
@lang_option
def command(form: str) -> int:
    """List the nodes of this node's cluster. Works on every node."""
    _, cluster = own.cluster(Environment.of_this_process())
    if form == "json":
        print_json([asdict(member) for member in cluster.members])
        return 0
    titles = (Phrase("node"), Phrase("host"), Phrase("address"), "SSH", "")
    rows: list[tuple[str, ...]] = [titles]
    for member in cluster.members:
        here = Phrase("this node") if member.rank == cluster.rank else ""
        rows.append((member.alias, member.host, member.address, f"{member.ssh_user}:{member.ssh_port}", here))
    own.table(rows)
    return 0
