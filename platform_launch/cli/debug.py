"""``platform-launch debug``: pdb in a rank of a running job."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress

import click

from platform_launch.cli.inspect import chosen_launch
from platform_launch.cli.options import lang_option
from platform_launch.console.languages import translate
from platform_launch.errors import InputError, LaunchError
from platform_launch.hardware.storage import temporary_folder
from platform_launch.observe import control
from platform_launch.observe.look import CONNECT_LIMIT_S, connected
from platform_launch.observe.workers import HookedProcess, NoAnswerError, find_hooked
from platform_launch.text import Phrase, joined


@click.command("debug")
@click.argument("job", required=False)
@click.option("--rank", type=click.IntRange(0), required=True, metavar="N", help="The rank to stop in.")
@lang_option
def command(rank: int, job: str | None) -> int:
    """Open pdb in a rank of a running job, on this machine; the other ranks wait for it.

    The rank stops where it is. "continue", "q" or Ctrl-C lets it continue. Collectives on the other ranks
    still time out as usual (NCCL: 10 minutes).

    JOB is its name, its launcher's pid or its log; if this user runs one job here, it may be omitted.
    """
    _, answer = chosen_launch(job)
    hooked = _process(rank, answer)
    try:
        with connected(hooked, {"do": "debug"}, CONNECT_LIMIT_S) as connection:
            click.echo(
                translate(
                    Phrase(
                        'rank {rank} (pid {pid}) is stopped; "q" or Ctrl-C lets it continue',
                        rank=rank,
                        pid=hooked.pid,
                    )
                )
            )
            _talk(connection)
    except NoAnswerError as error:
        raise LaunchError(
            Phrase(
                "cannot open a debugger in rank {rank} (pid {pid}): {problem}",
                rank=rank,
                pid=hooked.pid,
                problem=Phrase(str(error)),
            ),
            "platform-launch inspect --stacks shows where it is",
        ) from error
    return 0


def _process(rank: int, answer: Mapping[str, object]) -> HookedProcess:
    """Return the process of a rank on this machine. Raises InputError."""
    found = answer.get("nodes")
    nodes = [node for node in found if isinstance(node, dict)] if isinstance(found, list) else []
    home = {one["rank"]: (one["state"]["pid"], node) for node in nodes for one in node["ranks"]}
    if rank not in home:
        raise InputError(
            Phrase(
                "the job has no rank {rank}: it has {ranks}",
                rank=rank,
                ranks=joined(map(str, sorted(home)), ", "),
            )
        )
    pid, node = home[rank]
    for path in control.find_sockets(temporary_folder(), answer["uid"]):
        for hooked in find_hooked(path.parent):
            if (hooked.rank, hooked.pid) == (rank, pid):
                return hooked
    raise InputError(
        Phrase(
            "rank {rank} runs on node {node} ({host})",
            rank=rank,
            node=node["node_rank"],
            host=str(node["host"]),
        ),
        "run this command there, in the job's container and as its user",
    )


def _talk(connection: socket.socket) -> None:
    """Forward the user's input and the debugger's output, until either ends."""
    connection.settimeout(None)
    source = sys.stdin.fileno()
    listening: list[int | socket.socket] = [connection, source]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        while True:
            ready, _, _ = select.select(listening, [], [])
            if connection in ready:
                data = connection.recv(64 * 1024)
                if not data:
                    return
                click.echo(data.decode(errors="replace"), nl=False)
            if source in ready:
                typed = os.read(source, 64 * 1024)
                if not typed:  # Ctrl-D, or the end of a file of commands: still show the last answers
                    connection.shutdown(socket.SHUT_WR)
                    listening.remove(source)
                else:
                    connection.sendall(typed)
    except (KeyboardInterrupt, ConnectionError):
        click.echo()
    finally:
        signal.signal(signal.SIGINT, before)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
