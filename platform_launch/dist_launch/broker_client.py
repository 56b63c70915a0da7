"""A command's side of the broker's socket. Small on purpose: no SSH library, no asyncio."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from contextlib import suppress
from typing import Any

from platform_launch.dist_launch import answer_json
from platform_launch.dist_launch.folder import WaitFolder
from platform_launch.dist_launch.peer import user_behind
from platform_launch.errors import InputError, LaunchError, UsageError
from platform_launch.observe.control import short_path
from platform_launch.supervise.signals import SignalInbox
from platform_launch.text import Phrase

_MOST_BYTES = 1024 * 1024


def send_request(folder: WaitFolder, message: dict[str, Any]) -> dict[str, Any]:
    """Send a request with our stdout and stderr to the broker, forward interrupts, and return its answer.

    Main thread only. Raises LaunchError for any failure there.
    """
    inbox = SignalInbox((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    with _connect(folder) as connection, inbox:
        socket.send_fds(connection, [b"\0"], [1, 2])
        connection.sendall(json.dumps(message).encode() + b"\n")
        answer = _await(connection, inbox)
    if "error" in answer:
        error = LaunchError(answer["error"], answer["hint"])
        error.exit_code = answer["exit_code"]  # the error family that the broker found
        raise error
    return answer


def _connect(folder: WaitFolder) -> socket.socket:
    folder.check()
    connection = socket.socket(socket.AF_UNIX)
    try:
        with short_path(folder.socket) as path:
            connection.connect(path)
    except OSError as error:
        connection.close()
        if not folder.ssh_config.exists() and folder.owner() is not None:
            raise UsageError(
                "this node is not rank 0: only rank 0 holds the key to the others",
                "run it on rank 0; dist-launch hosts shows which node that is",
            ) from error
        raise InputError(
            Phrase(
                "no dist-launch wait answers in {path}: {problem}", path=folder.path, problem=error.strerror
            ),
            "start dist-launch wait on every node; this command belongs on rank 0, under the same user",
        ) from error
    if (user := user_behind(connection)) != os.geteuid():
        connection.close()
        raise InputError(
            Phrase(
                "what listens at {socket} belongs to user {user}, not to this one ({own})",
                socket=folder.socket,
                user=user,
                own=os.geteuid(),
            ),
            "run the command as the user that runs dist-launch wait",
        )
    return connection


def _await(connection: socket.socket, inbox: SignalInbox) -> dict[str, Any]:
    """Wait for the answer; forward a signal as its exit code."""
    held = b""
    while not held.endswith(b"\n"):
        ready, _, _ = select.select([connection.fileno(), inbox.fd], [], [])
        if inbox.fd in ready:
            for number in inbox.receive():
                with suppress(OSError):
                    connection.sendall(f"{128 + number}\n".encode())
        if connection.fileno() in ready:
            data = connection.recv(_MOST_BYTES)
            if not data:
                raise LaunchError("rank 0's dist-launch wait ended before this was done")
            held += data
    answer: dict[str, Any] = answer_json.loads(held)
    return answer
