"""``dist-launch ssh``: log in to one node, or run a command on several."""

from __future__ import annotations

import sys
from typing import Any

import click

from platform_launch.cli import completion
from platform_launch.cli.dist_launch import options as own
from platform_launch.dist_launch.broker_client import send_request
from platform_launch.environment import Environment
from platform_launch.errors import InputError, InstallationError, UsageError
from platform_launch.rendezvous.ranks import parse_ranks
from platform_launch.text import Phrase


def _waiting(_ctx: click.Context) -> list[str]:
    _, cluster = own.cluster(Environment.of_this_process())
    return ["all", *(member.alias for member in cluster.members)]


@click.command("ssh", context_settings={"allow_interspersed_args": False})
@own.ssh_options
@click.argument("nodes", metavar="RANKS|all", shell_complete=completion.names(_waiting))
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND...]")
def command(nodes: str, words: tuple[str, ...], **flags: Any) -> int:
    """Log in to a node (rank-2), or run COMMAND on it; on several nodes (0,2-3, all) in parallel.

    As with ssh, the arguments are joined by spaces and interpreted by the node's shell: 'cd /data && ls'. The
    environment is that of an SSH session; use `run` for the platform's.
    """
    env = Environment.of_this_process()
    ssh = own.ssh(env, flags)
    folder = own.folder(env)
    if nodes == "all" or len(parse_ranks(nodes)) > 1:
        if not words:
            raise UsageError(
                Phrase("{nodes} means several nodes: expected a command for them", nodes=nodes),
                "name one to log in",
            )
        request = {"do": "plain", "nodes": nodes, "command": " ".join(words), "ssh": own.as_request(ssh)}
        return int(send_request(folder, request)["exit_code"])
    _, cluster = own.cluster(env)
    (member,) = cluster.chosen(nodes)
    if not folder.ssh_config.exists():
        raise InputError("this node has no key for the others", "log in from rank 0")
    _become_ssh(ssh, folder.ssh_config, member.alias, words)
    return 0


def _become_ssh(ssh: own.Ssh, config: Any, alias: str, words: tuple[str, ...]) -> None:
    from platform_launch.dist_launch.openssh import become_ssh

    chosen = [
        *(["-p", str(ssh.port)] if ssh.port is not None else []),
        *(["-l", ssh.user] if ssh.user is not None else []),
        *(["-i", str(ssh.key)] if ssh.key is not None else []),
    ]
    try:
        become_ssh(config, alias, words, options=chosen, terminal=sys.stdin.isatty())
    except OSError as error:
        raise InstallationError(
            Phrase("OpenSSH's client cannot be started: {problem}", problem=error.strerror),
            "install openssh-client",
        ) from error
