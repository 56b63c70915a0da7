"""A secret that the nodes of a job share.

``PLATFORM_LAUNCH_SECRET`` holds it, or ``PLATFORM_LAUNCH_SECRET_FILE`` names a private file that does. It is
never printed and never sent; both sides of a connection prove that they have it (``lines``). Without a
secret, lines go unsealed, and whoever reaches the port is trusted as far as its messages are well formed.
"""

from __future__ import annotations

import hmac
import os
from pathlib import Path

from platform_launch.environment import Environment
from platform_launch.errors import InputError
from platform_launch.files import OTHERS_MAY_READ, file_problem
from platform_launch.text import Phrase

VARIABLE = "PLATFORM_LAUNCH_SECRET"
FILE_VARIABLE = "PLATFORM_LAUNCH_SECRET_FILE"

_SHORTEST = 16
_LARGEST_FILE = 64 * 1024


class Secret:
    """A shared secret that does not show in messages, logs or tracebacks."""

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "Secret(…)"

    def reveal(self) -> str:
        """Return the secret itself, to hand it on to a process of the same node."""
        return self._value

    def sign(self, data: bytes) -> bytes:
        """Return the HMAC of some data in hexadecimal."""
        return hmac.new(self._value.encode(), data, "sha256").hexdigest().encode()


def read_secret(env: Environment) -> Secret | None:
    """Return the secret that the variables name, None if there is none. Raises InputError."""
    path = env.text(FILE_VARIABLE)
    if VARIABLE in env:
        if path is not None:
            raise InputError(
                Phrase(
                    "{variable} and {file_variable} are both set: expected one of them",
                    variable=VARIABLE,
                    file_variable=FILE_VARIABLE,
                ),
                "unset one of the two",
            )
        return _checked(env[VARIABLE].strip(), VARIABLE)
    return None if path is None else _checked(_read_private(Path(path.value)), str(path.value))


def _checked(value: str, source: str) -> Secret:
    if len(value) < _SHORTEST:
        raise InputError(
            Phrase(
                "the secret in {source} has {length} characters: expected at least {shortest}",
                source=source,
                length=len(value),
                shortest=_SHORTEST,
            ),
            "make one with: openssl rand -hex 32",
        )
    return Secret(value)


def _read_private(path: Path) -> str:
    """Read a file that only its owner, who is this user or root, can write, and that others cannot read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            problem = file_problem(os.fstat(descriptor), OTHERS_MAY_READ)
            text = "" if problem else file.read(_LARGEST_FILE).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InputError(
            Phrase(
                "{file_variable}={path} cannot be read: {reason}",
                file_variable=FILE_VARIABLE,
                path=path,
                reason=reason,
            ),
            "name a file that contains the secret",
        ) from error
    if problem:
        raise InputError(
            Phrase(
                "{file_variable}={path} is not private: {problem}",
                file_variable=FILE_VARIABLE,
                path=path,
                problem=problem,
            ),
            Phrase(
                "chmod 600 {path}; in Kubernetes, give the Secret's volume defaultMode 0440 or use "
                "{variable}",
                path=path,
                variable=VARIABLE,
            ),
        )
    return text.strip()
