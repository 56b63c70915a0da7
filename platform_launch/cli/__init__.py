"""The command line: one file per command, loaded when the command runs. Errors are printed only here."""

from __future__ import annotations

from collections.abc import Sequence

import click

from platform_launch import __version__
from platform_launch.cli.options import lang_option
from platform_launch.cli.program import EXIT_CODES, SETTINGS, Commands, run_program

# Command → (module, one line of help). Kept here so that --help imports none of them.
COMMANDS = {
    "run": "launch a job on this node; every node runs the same command",
    "why": "find the root cause in the logs of a failed launch",
    "logs": "show the merged logs of all nodes of a launch, with the root cause marked",
    "inspect": "show what all ranks of a running job are doing now",
    "doctor": "report what would go wrong with a launch, on this node or between nodes",
    "simulate": "start several nodes of a job on this machine",
    "job": "print the file that submits a job to Slurm or Kubernetes",
    "init": "ask what a job needs, and write its files",
    "drill": "test whether a script survives faults: kills, SIGTERM, a full disk, broken checkpoints",
    "profile": "profile all ranks of a running job with torch's profiler",
    "debug": "open pdb in a rank of a running job",
    "topology": "print which node of which job this is",
    "platforms": "list the platforms this launcher knows",
    "quarantine": "list, add and release nodes that jobs should avoid for a while",
    "wheel": "build DeepSpeed with its ops compiled, install it, check it on every node",
    "entrypoint": "print the path of the shell entrypoint, for a container command",
    "dist-launch": "debug mode: all nodes wait, and rank 0 runs scripts on them (or use dist-launch)",
    "procguard": "groups of workers on a web page: server, agents and command line",
}


@click.group(
    cls=Commands,
    modules={
        name: (f"platform_launch.cli.{name.replace('-', '_')}", line) for name, line in COMMANDS.items()
    },
    context_settings=SETTINGS,
    epilog=EXIT_CODES,
)
@click.version_option(__version__)
@lang_option
def group() -> None:
    """Launch training jobs: run the same command on every node."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_program(group, "platform-launch", arguments)
