"""Settings of several ``dist-launch`` commands: a flag, else a variable, else the default."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from platform_launch.cli import completion
from platform_launch.cli.flags import flags
from platform_launch.cli.options import lang_option
from platform_launch.console.languages import translate
from platform_launch.dist_launch.broker_client import send_request
from platform_launch.dist_launch.cluster import WaitingCluster, read_cluster
from platform_launch.dist_launch.folder import WaitFolder
from platform_launch.environment import Environment, parse_port
from platform_launch.text import Phrase, columns, padded

DEFAULT_SSH_PORT = 2025

ssh_options = flags(
    click.option("--ssh-port", metavar="PORT", help="Port of the SSH servers (default: SSH_PORT, or 2025)."),
    click.option(
        "--ssh-key",
        metavar="FILE",
        shell_complete=completion.files,
        help="Rank 0's private key (default: SSH_KEY, or a new pair).",
    ),
    click.option(
        "--ssh-user",
        metavar="NAME",
        help="User to log in as (default: SSH_USER, or the user that runs wait).",
    ),
    lang_option,
)


@dataclass(frozen=True)
class Ssh:
    """How to reach nodes; None for what the user did not set. ``port_source`` is for messages."""

    port: int | None
    port_source: str
    key: Path | None
    public_key: Path | None
    user: str | None


def ssh(env: Environment, given: dict[str, Any]) -> Ssh:
    """Remove SSH's flags from a command's parameters; return them, completed by variables.

    Raises TopologyError for an invalid port.
    """
    port, key, user = (given.pop(name) for name in ("ssh_port", "ssh_key", "ssh_user"))
    known_port = env.port("SSH_PORT")
    return Ssh(
        port=parse_port(port, "--ssh-port") if port is not None else known_port.value if known_port else None,
        port_source="--ssh-port" if port is not None else "SSH_PORT",
        key=path_of(key or env.get("SSH_KEY")),
        public_key=None if key else path_of(env.get("SSH_PUBLIC_KEY")),
        user=user or env.get("SSH_USER"),
    )


def as_request(ssh: Ssh) -> dict[str, Any]:
    """Return how the broker is to reach the nodes; None: as they joined."""
    return {"ssh_port": ssh.port, "ssh_user": ssh.user, "key": str(ssh.key) if ssh.key else None}


def path_of(text: str | None) -> Path | None:
    """Return a user's path as absolute, None for none. Links and an unknown user's ``~`` are kept."""
    return Path(os.path.abspath(os.path.expanduser(text.strip()))) if text else None  # noqa: PTH100, PTH111


def cluster_file(env: Environment) -> Path:
    """Return CLUSTER_INFO_FILE, by default /tmp/cluster_info.json."""
    named = env.text("CLUSTER_INFO_FILE")
    return Path(named.value if named else "/tmp/cluster_info.json").absolute()  # noqa: S108 - the documented place


def cluster(env: Environment) -> tuple[WaitFolder, WaitingCluster]:
    """Return this node's cluster and its private folder. Raises InputError."""
    private = folder(env)
    return private, read_cluster(private.cluster_file)


def folder(env: Environment) -> WaitFolder:
    """Return the private folder of this node's ``wait``. Raises InputError if it is not really private."""
    private = WaitFolder.beside(cluster_file(env))
    private.check()
    return private


def ask_nodes(given: dict[str, Any], do: str, **more: object) -> tuple[WaitingCluster, list[dict[str, Any]]]:
    """Send a request to all nodes, using SSH's flags; return the cluster and each node's answer."""
    env = Environment.of_this_process()
    how = as_request(ssh(env, given))
    private, waiting = cluster(env)
    return waiting, send_request(private, {"do": do, **more, "ssh": how})["nodes"]


def table(rows: Sequence[Sequence[str]]) -> None:
    """Print columns; the first row holds their titles."""
    # Only phrases are translated: a host's name may happen to be a word of the catalogue.
    shown = [[translate(cell) if isinstance(cell, Phrase) else cell for cell in row] for row in rows]
    widths = [max(map(columns, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        line = "  ".join(padded(cell, width) for cell, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())
