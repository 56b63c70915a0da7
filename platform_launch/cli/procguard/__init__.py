"""The command line of ``procguard``: the server, the agent of a node, and groups from a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import click

from platform_launch import __version__
from platform_launch.cli.program import SETTINGS, Commands, run_program

COMMANDS = {
    "demo": "try it on this machine: a server, four agents and a group that runs a job",
    "server": "run the server with its web page",
    "agent": "run a node's agent: it registers the node's workers and starts them for the server",
    "ctl": "list, start and stop groups and workers, and read their logs",
    "user": "add, change and remove users",
}


@click.group(
    "procguard",
    cls=Commands,
    modules={name: (f"platform_launch.cli.procguard.{name}", line) for name, line in COMMANDS.items()},
    context_settings=SETTINGS,
    epilog="Exit codes: docs/reference/exit-codes.md",
)
@click.version_option(__version__)
def command() -> None:
    """Start groups of workers together from a web page, with ranks assigned by rule."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_program(command, "procguard", arguments)
