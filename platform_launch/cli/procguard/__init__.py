"""The command line of ``procguard``: the server, a node's agent, and groups from a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import click

from platform_launch import __version__
from platform_launch.cli.options import lang_option
from platform_launch.cli.program import SETTINGS, Commands, run_program

COMMANDS = {
    "demo": "try it: a server, four agents and a training group on this machine",
    "server": "run the server with its web page",
    "agent": "run a node's agent: it registers the node's workers, and starts and stops their runs",
    "ctl": "show, start and stop groups, and read logs",
    "user": "add, change and remove users",
}


@click.group(
    "procguard",
    cls=Commands,
    modules={name: (f"platform_launch.cli.procguard.{name}", line) for name, line in COMMANDS.items()},
    context_settings=SETTINGS,
    epilog="Exit codes: 64 command line or join token, 66 configuration, 75 server or database unavailable.",
)
@click.version_option(__version__)
@lang_option
def command() -> None:
    """Start groups of workers as one from a web page, with ranks assigned by rule."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_program(command, "procguard", arguments)
