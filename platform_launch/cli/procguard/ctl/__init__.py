"""``procguard ctl``: groups, workers and logs from a terminal, through the server's API."""

from __future__ import annotations

import click

from platform_launch.cli.procguard.ctl import changing, logs, reading, session
from platform_launch.cli.program import SETTINGS


@click.group("ctl", context_settings=SETTINGS)
def command() -> None:
    """Show groups and workers, start and stop groups, read logs.

    The server is --server, PROCGUARD_SERVER or the server of the last login. `ctl login` saves a token for
    it; scripts may set PROCGUARD_TOKEN instead.
    """


for _command in (
    session.login,
    session.logout,
    reading.groups,
    reading.nodes,
    reading.workers,
    reading.ranks,
    reading.runs,
    reading.inspect,
    reading.users,
    reading.tokens,
    changing.create,
    changing.set_,
    changing.owners,
    changing.move,
    changing.start,
    changing.stop,
    changing.restart,
    changing.delete,
    changing.drain,
    changing.forget,
    changing.release,
    logs.logs,
    reading.events,
):
    command.add_command(_command)
