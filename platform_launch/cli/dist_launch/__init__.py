"""The command line of ``dist-launch``: all nodes wait; rank 0 runs scripts on them, again and again."""

from __future__ import annotations

from collections.abc import Sequence

import click

from platform_launch import __version__
from platform_launch.cli.options import lang_option
from platform_launch.cli.program import EXIT_CODES, SETTINGS, Commands, run_program

COMMANDS = {
    "wait": "connect to the other nodes, then wait; the container command of every node",
    "run": "run a script on all nodes, from rank 0",
    "kill": "stop the jobs on all nodes; `wait` keeps running",
    "status": "show which nodes are up, and what runs on them",
    "hosts": "list the nodes",
    "verify": "check the connection to every node, step by step",
    "ssh": "log in to a node, or run a command on several",
    "inspect": "show what all ranks of a running job are doing; run it on one of its nodes",
}
_ELSEWHERE = {"inspect": "platform_launch.cli.inspect"}


@click.group(
    "dist-launch",
    cls=Commands,
    modules={
        name: (_ELSEWHERE.get(name, f"platform_launch.cli.dist_launch.{name}"), line)
        for name, line in COMMANDS.items()
    },
    context_settings=SETTINGS,
    epilog=EXIT_CODES,
)
@click.version_option(__version__)
@lang_option
def command() -> None:
    """Start a cluster once, then run scripts on it from rank 0 as often as you like."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_program(command, "dist-launch", arguments)
