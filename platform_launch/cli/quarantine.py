"""``platform-launch quarantine``: the nodes that jobs should avoid for a while."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import click

from platform_launch.cli import completion
from platform_launch.cli.flags import Number
from platform_launch.cli.options import lang_option
from platform_launch.cli.output import print_json
from platform_launch.cli.program import SETTINGS
from platform_launch.console import Console
from platform_launch.console.languages import translate
from platform_launch.environment import Environment
from platform_launch.errors import InputError, UsageError, shown_list
from platform_launch.health.quarantine import FILE_VARIABLE, QuarantinedNode, quarantine_file, read
from platform_launch.health.quarantine import add as add_node
from platform_launch.health.quarantine import release as release_node
from platform_launch.text import Phrase, counted

quarantine_file_option = click.option(
    "--quarantine",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help=f"File on shared storage (default: ${FILE_VARIABLE}).",
)


def needed_file(flag: Path | None) -> Path:
    """Return the file that a flag or a variable names. Raises UsageError if neither does."""
    path = quarantine_file(Environment.of_this_process(), flag)
    if path is None:
        raise UsageError(
            "no quarantine file was named: expected --quarantine FILE",
            Phrase("or set {variable}", variable=FILE_VARIABLE),
        )
    return path


def _held(ctx: click.Context) -> list[str]:
    return [node.node for node in read(needed_file(ctx.params.get("quarantine")))]


@click.group("quarantine", context_settings=SETTINGS)
def command() -> None:
    """List and change the nodes that jobs should avoid for a while."""


@command.command("list")
@quarantine_file_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "names", "json"]),
    default="table",
    show_default=True,
    help="names prints a comma-separated list, for sbatch --exclude.",
)
@lang_option
def show(quarantine: Path | None, form: str) -> int:
    """List the nodes in quarantine."""
    nodes = read(needed_file(quarantine), report=Console().report)
    if form == "names":
        click.echo(",".join(node.node for node in nodes))
    elif form == "json":
        print_json([asdict(node) for node in nodes])
    else:
        for node in nodes:
            click.echo(translate(Phrase("{node}: {state}", node=node.node, state=node.describe())))
        if not nodes:
            click.echo(translate("no node is in quarantine"))
    return 0


@command.command("add")
@quarantine_file_option
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@click.option("--reason", required=True, help="The reason, shown to users.")
@click.option("--hours", type=Number(0, min_open=True), help="For how long (default: until released).")
@lang_option
def add(quarantine: Path | None, nodes: tuple[str, ...], reason: str, hours: float | None) -> int:
    """Put nodes in quarantine."""
    path, now = needed_file(quarantine), time.time()
    for node in nodes:
        if "," in node or not node.strip() or not node.isprintable():
            raise UsageError(
                Phrase("{node!r} is not a node's name: expected one name per argument", node=node)
            )
    for node in nodes:
        add_node(path, QuarantinedNode(node, now, None if hours is None else now + hours * 3600, reason))
    Console().success(
        Phrase("{path}: {nodes} put in quarantine", path=path, nodes=counted(len(nodes), "node"))
    )
    return 0


@command.command("release")
@quarantine_file_option
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...", shell_complete=completion.names(_held))
@lang_option
def release(quarantine: Path | None, nodes: tuple[str, ...]) -> int:
    """Release nodes from quarantine."""
    path = needed_file(quarantine)
    held = {node.node for node in read(path)}
    unknown = [node for node in nodes if node not in held]
    if unknown:
        known = (
            Phrase("expected one of {names}", names=shown_list(sorted(held)))
            if held
            else Phrase("no node is in quarantine there")
        )
        raise InputError(
            Phrase(
                "{path} does not contain {unknown}: {known}",
                path=path,
                unknown=shown_list(unknown),
                known=known,
            ),
            "platform-launch quarantine list shows them",
        )
    for node in nodes:
        release_node(path, node, "by hand")
    Console().success(Phrase("{path}: {nodes} released", path=path, nodes=counted(len(nodes), "node")))
    return 0
