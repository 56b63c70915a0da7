"""Passwords and sessions. A session is a signed token with a name, the account's epoch and the session's id.

Nothing is stored while a session lasts. It ends when it expires, when the account's epoch changes (a new
password, another role, the account removed), or at logout: those ids are kept in a file until they expire.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path

import anyio
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError
from itsdangerous import BadSignature, URLSafeSerializer, URLSafeTimedSerializer

from platform_launch.files import PRIVATE, write_whole
from platform_launch.procguard.api.refused import Unavailable
from platform_launch.procguard.api.shapes.people import PROXY_SESSION, Person, UserRole
from platform_launch.procguard.database.users import User, Users

TOKEN_PREFIX = "pgt_"  # noqa: S105 - how such tokens are known, also to those who search for leaked ones
TOKEN_SESSION = "token "  # noqa: S105 - how the session of a script begins
_RANK = (UserRole.VIEWER, UserRole.OPERATOR, UserRole.ADMIN)


class Sessions:
    """Creates, reads and ends tokens. Thread-safe."""

    def __init__(self, secret: str, accounts: Users, ended_file: Path, hours: float) -> None:
        self._secret = secret.encode()
        self._accounts = accounts
        self._ended = _Ended(ended_file)
        self.lasts_s = int(hours * 3600)
        self._serializer = URLSafeTimedSerializer(
            secret,
            salt="procguard session",
            signer_kwargs={"key_derivation": "hmac", "digest_method": hashlib.sha256},
        )

        self._tokens = URLSafeSerializer(
            secret,
            salt="procguard api token",
            signer_kwargs={"key_derivation": "hmac", "digest_method": hashlib.sha256},
        )

    def token(self, id_: str) -> str:
        """Return the API token of an id."""
        return TOKEN_PREFIX + str(self._tokens.dumps(id_))

    def begin(self, account: User) -> tuple[str, str, datetime]:
        """Return a new session's token, its id and when it expires."""
        session = secrets.token_urlsafe(12)
        token = self._serializer.dumps([account.name, account.epoch, session])
        return str(token), session, datetime.now(timezone.utc) + timedelta(seconds=self.lasts_s)

    def is_ours(self, token: str) -> bool:
        """Return whether a token was signed here and has not expired; does not use the database.

        Only the database knows when an API token expires.
        """
        try:
            if token.startswith(TOKEN_PREFIX):
                self._tokens.loads(token.removeprefix(TOKEN_PREFIX))
                return True
            self._serializer.loads(token, max_age=self.lasts_s)
        except (BadSignature, ValueError, TypeError):
            return False
        return True

    def who(self, token: str) -> Person | None:
        """Return the user of a token; None if it is not valid (any more). Raises Unavailable."""
        if token.startswith(TOKEN_PREFIX):
            return self._by_api_token(token.removeprefix(TOKEN_PREFIX))
        try:
            name, epoch, session = self._serializer.loads(token, max_age=self.lasts_s)
        except (BadSignature, ValueError, TypeError):
            return None
        account = self._accounts.find(name)
        if account is None or account.epoch != epoch or session in self._ended:
            return None
        return self._person(account, account.role, session)

    def _by_api_token(self, signed: str) -> Person | None:
        try:
            id_ = str(self._tokens.loads(signed))
        except (BadSignature, ValueError, TypeError):
            return None
        kept = self._accounts.token(id_)
        account = self._accounts.find(kept.user) if kept else None
        if kept is None or account is None:
            return None
        role = min(account.role, kept.role, key=_RANK.index)
        return self._person(account, role, f"{TOKEN_SESSION}{id_}")

    def of_proxy(self, account: User) -> Person:
        """Return a user named by a trusted proxy; such a session never ends here."""
        return self._person(account, account.role, f"{PROXY_SESSION}{account.name}")

    def _person(self, account: User, role: UserRole, session: str) -> Person:
        return Person(account.name, role, session, self.csrf(session), bool(account.subject))

    def end(self, person: Person) -> None:
        """End a session. Raises Unavailable if that cannot be stored."""
        self._ended.add(person.session, time.time() + self.lasts_s)

    def secret(self, purpose: str) -> str:
        """Return a secret of this server for another purpose."""
        return hmac.new(self._secret, f"procguard {purpose}".encode(), hashlib.sha256).hexdigest()

    def csrf(self, session: str) -> str:
        """Return the CSRF token of a session."""
        return self.secret(f"csrf {session}")


class _Ended:
    """Ids of ended sessions with their expiry, a line each in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._until: dict[str, float] = {}
        self._lock = threading.Lock()
        with suppress(OSError):
            for line in path.read_text(encoding="ascii", errors="replace").splitlines():
                with suppress(ValueError):
                    until, session = line.split(" ", 1)
                    self._until[session] = float(until)
        self._forget()

    def __contains__(self, session: str) -> bool:
        return session in self._until

    def add(self, session: str, until: float) -> None:
        """Store an id, also for the next start of the server."""
        with self._lock:
            self._forget()
            self._until[session] = until
            text = "".join(f"{when:.0f} {one}\n" for one, when in self._until.items())
            try:
                write_whole(self._path, text, mode=PRIVATE)
            except OSError as error:
                raise Unavailable("logout-not-saved", reason=str(error.strerror)) from error

    def _forget(self) -> None:
        now = time.time()
        self._until = {session: until for session, until in self._until.items() if until > now}


# Checking a password takes tens of MiB and milliseconds: few run at a time, others wait without a thread.
CHECKS = anyio.CapacityLimiter(2)
_HASHER = PasswordHasher(time_cost=3, memory_cost=24 * 1024, parallelism=1)


def hash_password(password: str) -> str:
    """Return the hash of a password."""
    return _HASHER.hash(password)


def is_password(kept: str | None, password: str) -> bool:
    """Return whether a password matches a hash. None, for an unknown user, takes as long."""
    try:
        return _HASHER.verify(kept or _nobodys(), password) and kept is not None
    except (Argon2Error, InvalidHashError):
        return False


@cache
def _nobodys() -> str:
    return hash_password("nobody's password")
