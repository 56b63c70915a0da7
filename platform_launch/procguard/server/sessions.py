"""Sessions: a signed token that carries a name, the account's epoch and the session's own id.

Nothing is stored for a session while it lasts. It ends when its time is over, when its account's epoch moves
on (a new password, another role, the account removed), or when somebody logs out: the ids of those are kept
in a file until their time would be over.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

from itsdangerous import BadSignature, URLSafeSerializer, URLSafeTimedSerializer

from platform_launch.files import PRIVATE, write_whole
from platform_launch.procguard.api.refused import Unavailable
from platform_launch.procguard.api.shapes.people import PROXY_SESSION, Person, UserRole
from platform_launch.procguard.database.users import User, Users

TOKEN_PREFIX = "pgt_"  # noqa: S105 - how such tokens are known, also to those who search for leaked ones
TOKEN_SESSION = "token "  # noqa: S105 - how the session of a script begins
_RANK = (UserRole.VIEWER, UserRole.OPERATOR, UserRole.ADMIN)


class Sessions:
    """Makes tokens, reads them and ends them. Thread-safe."""

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
        """Return what a script shows for the API token of this id."""
        return TOKEN_PREFIX + str(self._tokens.dumps(id_))

    def begin(self, account: User) -> tuple[str, str, datetime]:
        """Return a new session's token, its id and when it ends."""
        session = secrets.token_urlsafe(12)
        token = self._serializer.dumps([account.name, account.epoch, session])
        return str(token), session, datetime.now(timezone.utc) + timedelta(seconds=self.lasts_s)

    def is_ours(self, token: str) -> bool:
        """Tell whether a token was made here and its time is not over; asks no database.

        When an API token ends, only the database knows.
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
        """Return whose token it is; None when it is nobody's (any more). Raises Unavailable."""
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
        """Return somebody whom a trusted proxy names with every request: nothing of it ends here."""
        return self._person(account, account.role, f"{PROXY_SESSION}{account.name}")

    def _person(self, account: User, role: UserRole, session: str) -> Person:
        return Person(account.name, role, session, self.csrf(session), bool(account.subject))

    def end(self, person: Person) -> None:
        """End a session. Raises Unavailable when the server could forget that it did."""
        self._ended.add(person.session, time.time() + self.lasts_s)

    def secret(self, purpose: str) -> str:
        """Return a secret of this server for another purpose."""
        return hmac.new(self._secret, f"procguard {purpose}".encode(), hashlib.sha256).hexdigest()

    def csrf(self, session: str) -> str:
        """Return what a page of this session must send with every change."""
        return self.secret(f"csrf {session}")


class _Ended:
    """Ids of sessions that were ended, until when they must be remembered; a line each in a file."""

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
        """Remember an id, also after the server was started again."""
        with self._lock:
            self._forget()
            self._until[session] = until
            text = "".join(f"{when:.0f} {one}\n" for one, when in self._until.items())
            try:
                write_whole(self._path, text, mode=PRIVATE)
            except OSError as error:
                raise Unavailable(f"logged out, but not noted down: {error.strerror}") from error

    def _forget(self) -> None:
        now = time.time()
        self._until = {session: until for session, until in self._until.items() if until > now}
