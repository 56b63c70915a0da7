"""``platform-launch entrypoint``: the path of the shell entrypoint, for a container command."""

from __future__ import annotations

import click

from platform_launch.errors import InstallationError
from platform_launch.project import project_root
from platform_launch.text import Phrase


@click.command("entrypoint")
def command() -> int:
    """Print the path of start_multinode_platform.sh.

    The script uses the active Python environment, or the one that PLATFORM_LAUNCH_VENV or
    PLATFORM_LAUNCH_CONDA_ENV names. `platform-launch run` launches the same way, in the environment that
    platform-launch is installed in.
    """
    script = project_root() / "start_multinode_platform.sh"
    if not script.is_file():
        raise InstallationError(
            Phrase("{script} does not exist: expected it next to the package", script=script),
            "reinstall platform-launch; `platform-launch run` needs no script",
        )
    click.echo(script)
    return 0
