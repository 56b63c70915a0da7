"""Passwords: argon2id, with the cost that OWASP recommends for a server of little memory."""

from __future__ import annotations

from functools import cache

import anyio
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

# A check of a password takes tens of MiB and milliseconds: few at a time, the rest waits outside threads.
CHECKS = anyio.CapacityLimiter(2)
_HASHER = PasswordHasher(time_cost=3, memory_cost=24 * 1024, parallelism=1)


def hash_password(password: str) -> str:
    """Return what is kept of a password."""
    return _HASHER.hash(password)


def is_password(kept: str | None, password: str) -> bool:
    """Tell whether a password is the one ``kept`` was made of. None, for nobody, takes as long."""
    try:
        return _HASHER.verify(kept or _nobodys(), password) and kept is not None
    except (Argon2Error, InvalidHashError):
        return False


@cache
def _nobodys() -> str:
    return hash_password("nobody's password")
