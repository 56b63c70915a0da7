"""Small secrets in files that only the server's user may read."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

from platform_launch.errors import InputError
from platform_launch.files import (
    OTHERS_MAY_CHANGE,
    OTHERS_MAY_READ,
    PRIVATE,
    foreign_problem,
    write_new,
)


def read_or_make(path: Path) -> str:
    """Return the secret in a file; a new random one is written there first when the file is missing.

    Whole or not at all, and never over what is there. Raises InputError when neither can be done.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with suppress(FileExistsError):  # another process was faster: its secret counts
                write_new(path, secrets.token_urlsafe(32) + "\n", mode=PRIVATE)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", "make its folder writable") from error
    return read_secret(path, str(path))


def read_secret(path: Path, named: str) -> str:
    """Return the secret in a file, which messages call ``named``. Raises InputError where others see it."""
    try:
        check_private(path)
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise InputError(
            f"{named} cannot be read: {reason}", "expected a file with a secret that this user may read"
        ) from error
    if not text:
        raise InputError(f"{named} is empty: expected a secret", "write a random one: openssl rand -hex 32")
    return text


def check_private(path: Path) -> None:
    """Make sure that a secret's file is ours, and that nobody else reads it. Raises InputError."""
    _check(path, OTHERS_MAY_READ, f"chmod 600 {path} (of a Kubernetes Secret: defaultMode 0440)")


def check_ours(path: Path) -> None:
    """Make sure that nobody else can change a file or folder of the server's. Raises InputError."""
    _check(path, OTHERS_MAY_CHANGE, f"chmod go-w {path}")


def _check(path: Path, forbidden: int, mend: str) -> None:
    problem = foreign_problem(path.stat(), forbidden)
    if problem:
        raise InputError(f"{path}: {problem}", f"let it belong to the user that runs the server; {mend}")
