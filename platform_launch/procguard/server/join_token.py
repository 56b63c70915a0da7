"""What agents join with: from a variable, a file, or made for a server that only this machine reaches."""

from __future__ import annotations

from pathlib import Path

from platform_launch.environment import Environment
from platform_launch.errors import InputError
from platform_launch.procguard.api.wire import JOIN_TOKEN
from platform_launch.procguard.server.private import read_or_make, read_secret
from platform_launch.procguard.server.settings import ServerSettings
from platform_launch.text import counted

SHORTEST = 16
"""Characters: shorter ones can be guessed."""


def join_token(settings: ServerSettings, env: Environment) -> tuple[str, Path | None]:
    """Return the token that was set, or for a server only this machine can reach a random one.

    Beside it the file that it lies in, None where it came by a variable.

    Raises InputError where it is too short, or where none is set and others could reach the server.
    """
    value = env.text(JOIN_TOKEN)
    if value is not None and value.value:
        return _long_enough(value.value, JOIN_TOKEN), None
    path = settings.join_token_file
    if path is not None:
        return _long_enough(read_secret(path, f"join_token_file={path}"), str(path)), path
    if not settings.loopback:
        raise InputError(
            f"listen={settings.listen} can be reached from other machines, and no join token is set",
            f"set {JOIN_TOKEN} or join_token_file, so that not everybody's agent can join; "
            "or listen on 127.0.0.1",
        )
    path = settings.data / "join-token"
    return read_or_make(path), path


def _long_enough(token: str, source: str) -> str:
    if len(token) < SHORTEST:
        raise InputError(
            f"the join token of {source} has {counted(len(token), 'character')}: "
            f"expected at least {SHORTEST}",
            "take a random one: openssl rand -hex 32",
        )
    return token
