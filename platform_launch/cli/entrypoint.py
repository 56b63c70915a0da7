"""``platform-launch entrypoint``: where the shell entrypoint lies, to be named as a container command."""

from __future__ import annotations

import click

from platform_launch.errors import InstallationError
from platform_launch.project import project_root
from platform_launch.text import Phrase


@click.command("entrypoint")
def command() -> int:
    """Print the path of start_multinode_platform.sh.

    It finds a Python environment by itself (configs/platform.env); `platform-launch run` is the same launch
    in the environment that platform-launch is installed in.
    """
    script = project_root() / "start_multinode_platform.sh"
    if not script.is_file():
        raise InstallationError(
            Phrase("{script} does not exist: expected it beside the package", script=script),
            "reinstall platform-launch; `platform-launch run` needs no script",
        )
    click.echo(script)
    return 0
