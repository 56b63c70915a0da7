"""Small secrets in files that only the server's user may read."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from platform_launch.errors import InputError


def read_or_make(path: Path) -> str:
    """Return the secret in a file; a new random one is written there first when the file is missing.

    Whole or not at all, and never over what is there. Raises InputError when neither can be done.
    """
    try:
        if not path.exists():
            write_private(path, secrets.token_urlsafe(32))
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise InputError(
            f"{path}: {reason}: expected a file with a secret that this user may read and write"
        ) from error
    if not text:
        raise InputError(f"{path} is empty: expected a secret", "remove it: a new one is made")
    return text


def write_private(path: Path, text: str) -> None:
    """Write a new file for this user only. An existing one stays as it is. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.link(name, path)
    except FileExistsError:
        pass  # another process was faster: its secret counts
    finally:
        Path(name).unlink()
