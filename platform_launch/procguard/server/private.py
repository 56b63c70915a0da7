"""Secrets in files that only the server's user may read, and the join token of agents."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from platform_launch.environment import Environment
from platform_launch.errors import InputError
from platform_launch.files import (
    OTHERS_MAY_CHANGE,
    OTHERS_MAY_READ,
    PRIVATE,
    foreign_problem,
    write_new,
)
from platform_launch.procguard.api.wire import JOIN_TOKEN
from platform_launch.text import Phrase, counted

if TYPE_CHECKING:
    from platform_launch.procguard.server.settings import ServerSettings


def read_or_make(path: Path) -> str:
    """Return the secret in a file; create it with a random one if the file is missing.

    It is written atomically and never replaced. Raises InputError if it can be neither read nor created.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with suppress(FileExistsError):  # another process was faster: its secret counts
                write_new(path, secrets.token_urlsafe(32) + "\n", mode=PRIVATE)
    except OSError as error:
        raise InputError(
            Phrase("{file} cannot be written: {problem}", file=path, problem=error.strerror),
            "make its folder writable",
        ) from error
    return read_secret(path, str(path))


def read_secret(path: Path, named: str) -> str:
    """Return the secret in a file, called ``named`` in messages. Raises InputError if others can read it."""
    try:
        check_private(path)
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else Phrase("not a text file")
        raise InputError(
            Phrase("{file} cannot be read: {problem}", file=named, problem=reason),
            "expected a file with a secret that this user may read",
        ) from error
    if not text:
        raise InputError(
            Phrase("{file} is empty: expected a secret", file=named), "create one: openssl rand -hex 32"
        )
    return text


def check_private(path: Path) -> None:
    """Check that a secret's file is ours and that nobody else can read it. Raises InputError."""
    _check(path, OTHERS_MAY_READ, f"chmod 600 {path} (of a Kubernetes Secret: defaultMode 0440)")


def check_ours(path: Path) -> None:
    """Check that nobody else can change a file or folder of the server's. Raises InputError."""
    _check(path, OTHERS_MAY_CHANGE, f"chmod go-w {path}")


def _check(path: Path, forbidden: int, mend: str) -> None:
    problem = foreign_problem(path.stat(), forbidden)
    if problem:
        raise InputError(
            Phrase("{file}: {problem}", file=path, problem=problem),
            Phrase("it must belong to the user that runs the server; {command}", command=mend),
        )


SHORTEST = 16
"""Characters; shorter ones can be guessed."""


def join_token(settings: ServerSettings, env: Environment) -> tuple[str, Path | None]:
    """Return the configured token, or a random one for a server that only this machine can reach.

    Also returns its file, None if it came from the variable. Raises InputError if it is too short, or if none
    is set and others can reach the server.
    """
    value = env.text(JOIN_TOKEN)
    if value is not None and value.value:
        return _long_enough(value.value, JOIN_TOKEN), None
    path = settings.join_token_file
    if path is not None:
        return _long_enough(read_secret(path, f"join_token_file={path}"), str(path)), path
    if not settings.loopback:
        raise InputError(
            Phrase(
                "listen={address} can be reached from other machines, and no join token is set",
                address=settings.listen,
            ),
            "set PROCGUARD_JOIN_TOKEN or join_token_file, so that only your agents can join, or listen on "
            "127.0.0.1",
        )
    path = settings.data / "join-token"
    return read_or_make(path), path


def _long_enough(token: str, source: str) -> str:
    if len(token) < SHORTEST:
        raise InputError(
            Phrase(
                "the join token in {source} has {length}: expected at least {least}",
                source=source,
                length=counted(len(token), "character"),
                least=SHORTEST,
            ),
            "create one: openssl rand -hex 32",
        )
    return token
