"""OpenSSH's client: logins with a terminal, and commands that use the user's own SSH configuration."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

_CONFIGURED_S = 10.0
# A node that is cut off is detected within a minute, whatever TCP's timeouts are.
_OPTIONS = ("BatchMode=yes", "ConnectTimeout=20", "ServerAliveInterval=15", "ServerAliveCountMax=4")
# The command reads nothing. When our end of its standard input closes, it gets SIGTERM, because shells let
# background commands ignore SIGINT.
_LINKED = (
    "exec 3<&0; {command} </dev/null 3<&- & job=$!; "
    '{{ read -r _; kill -s TERM "$job"; }} <&3 3<&- >/dev/null 2>&1 & watch=$!; '
    'exec 3<&- </dev/null; wait "$job"; code=$?; kill "$watch" 2>/dev/null; exit "$code"'
)


def become_ssh(
    config: Path, alias: str, command: Sequence[str], *, options: Sequence[str], terminal: bool
) -> NoReturn:
    """Replace this process by ``ssh`` to a node. Raises OSError if there is no ``ssh``."""
    argv = ["ssh", "-F", str(config), *options, *(["-t"] if terminal and command else []), alias]
    os.execvp("ssh", [*argv, *command])  # noqa: S606


def ssh_command(host: str, folder: Path, command: str) -> list[str]:
    """Return the command line that runs a shell command in a folder of a host, without prompts.

    The command ends when the client's standard input closes, as it does when the client is killed.
    """
    linked = f"cd {shlex.quote(str(folder))} || exit; {_LINKED.format(command=command)}"
    options = [word for option in _OPTIONS for word in ("-o", option)]
    return ["ssh", "-T", *options, "--", host, shlex.join(["exec", "/bin/sh", "-c", linked])]


def address_of(host: str) -> str:
    """Return the address of a host in the user's SSH configuration, or the host itself."""
    try:
        listing = subprocess.run(
            ["ssh", "-G", "--", host],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CONFIGURED_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return host
    words = (line.split() for line in listing.splitlines())
    return next((rest[0] for key, *rest in words if key == "hostname" and rest), host)
