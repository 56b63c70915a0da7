"""Users, read and written on separate connections, also while a server runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import Connection, Engine, Row, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from platform_launch.procguard.api.refused import NotFound, RequestRefused
from platform_launch.procguard.api.shapes.people import UserRole
from platform_launch.procguard.database.engine import transaction
from platform_launch.procguard.database.store import DatabaseChange
from platform_launch.procguard.database.tables import api_tokens, users
from platform_launch.sentences import Sentence, sentence

MOST_TOKENS = 20
"""Per user."""

_NO_PASSWORD = "!"  # noqa: S105 - no hash: every password differs from it


@dataclass(frozen=True)
class User:
    """A user. ``epoch`` counts what ends all sessions: a new password or role."""

    name: str
    role: UserRole
    password_hash: str
    epoch: int
    created_at: datetime
    address: str = ""
    """Where notices go, an Apprise address."""
    subject: str = ""
    """The identity provider's id of the user; empty for users with a password."""


@dataclass(frozen=True)
class ApiToken:
    """A script's token: until it expires it allows what both ``role`` and the user's role allow."""

    id: str
    user: str
    label: str
    role: UserRole
    created_at: datetime
    ends_at: datetime


class Users:
    """The users of a database. ``password_hash`` is an argon2 hash made by the caller.

    ``who`` is recorded in the audit log for each change. Every method raises Unavailable if the database
    cannot be reached or is locked.
    """

    def __init__(self, engine: Engine, who: str) -> None:
        self._engine = engine
        self._who = who

    def by(self, who: str) -> Users:
        """Return the same users, with another author of changes."""
        return Users(self._engine, who)

    def find(self, name: str) -> User | None:
        """Return a user, None if there is none of that name."""
        if "\0" in name:
            return None
        with transaction(self._engine) as connection:
            row = connection.execute(select(users).where(users.c.name == name)).first()
            return _user(row) if row else None

    def all(self) -> list[User]:
        """Return all users by name."""
        with transaction(self._engine) as connection:
            rows = connection.execute(select(users).order_by(users.c.name))
            return [_user(row) for row in rows]

    def add(self, name: str, role: UserRole, password_hash: str, subject: str = "") -> None:
        """Add a user. Raises RequestRefused if the name is taken.

        The epoch starts at a number that no earlier user of the name had, so old sessions stay invalid.
        """
        now = datetime.now(timezone.utc)
        row = {"name": name, "role": role.value, "password_hash": password_hash, "created_at": now}
        row["subject"] = subject
        with transaction(self._engine, writes=True) as connection:
            try:
                connection.execute(insert(users).values(**row, epoch=int(now.timestamp() * 1000)))
            except IntegrityError as error:
                raise RequestRefused("user-exists", user=name) from error
            self._record(connection, "user-added", name, sentence("role", role=role.value))

    def sign_in(self, name: str, role: UserRole, subject: str) -> User:
        """Return the user that an identity provider vouches for: created at the first login, with the current
        role.

        Raises RequestRefused if the name belongs to somebody else, such as a user with a password.
        """
        found = self.find(name)
        if found is None:
            self.add(name, role, _NO_PASSWORD, subject)
        elif found.subject != subject:
            raise RequestRefused("name-of-another", user=name)
        elif found.role is not role:
            self.set_role(name, role)
        account = self.find(name)
        if account is None:  # removed just now
            raise _unknown(name)
        return account

    def set_password(self, name: str, password_hash: str) -> None:
        """Set a password, which ends all sessions. Raises NotFound."""
        self._change(name, "user-password", password_hash=password_hash, epoch=users.c.epoch + 1)

    def set_role(self, name: str, role: UserRole) -> None:
        """Set a role, which ends all sessions. Raises NotFound."""
        detail = sentence("role", role=role.value)
        self._change(name, "user-role", detail, role=role.value, epoch=users.c.epoch + 1)

    def set_address(self, name: str, address: str) -> None:
        """Set where a user's notices go; sessions continue. Raises NotFound."""
        self._change(name, "user-address", address=address)

    def remove(self, name: str) -> None:
        """Remove a user, which ends all sessions. Raises NotFound."""
        with transaction(self._engine, writes=True) as connection:
            if connection.execute(delete(users).where(users.c.name == name)).rowcount == 0:
                raise _unknown(name)
            self._record(connection, "user-removed", name)

    def tokens(self, name: str) -> list[ApiToken]:
        """Return a user's valid tokens, newest first."""
        now = datetime.now(timezone.utc)
        wanted = select(api_tokens).where(api_tokens.c.user_name == name, api_tokens.c.ends_at > now)
        with transaction(self._engine) as connection:
            return [
                _token(row) for row in connection.execute(wanted.order_by(api_tokens.c.created_at.desc()))
            ]

    def token(self, id_: str) -> ApiToken | None:
        """Return a valid token, None if there is none."""
        wanted = select(api_tokens).where(api_tokens.c.id == id_)
        with transaction(self._engine) as connection:
            row = connection.execute(wanted).first()
        return _token(row) if row and row.ends_at > datetime.now(timezone.utc) else None

    def add_token(self, token: ApiToken) -> None:
        """Store a new token. Raises NotFound, or RequestRefused if its user has too many."""
        own = api_tokens.c.user_name == token.user
        with transaction(self._engine, writes=True) as connection:
            # Concurrent requests are counted one after the other.
            user = select(users.c.name).where(users.c.name == token.user).with_for_update()
            if connection.execute(user).first() is None:
                raise _unknown(token.user)
            connection.execute(
                delete(api_tokens).where(own, api_tokens.c.ends_at <= datetime.now(timezone.utc))
            )
            count = select(func.count()).select_from(api_tokens).where(own)
            if connection.execute(count).scalar_one() >= MOST_TOKENS:
                raise RequestRefused("too-many-tokens", user=token.user, count=str(MOST_TOKENS))
            row = {"user_name": token.user, "label": token.label, "role": token.role.value}
            times = {"created_at": token.created_at, "ends_at": token.ends_at}
            connection.execute(insert(api_tokens).values(id=token.id, **row, **times))
            day = f"{token.ends_at:%Y-%m-%d}"
            detail = sentence("token", label=token.label, role=token.role.value, day=day)
            self._record(connection, "token-added", token.user, detail)

    def end_token(self, name: str, id_: str) -> None:
        """Revoke a token of a user. Raises NotFound."""
        which = (api_tokens.c.user_name == name, api_tokens.c.id == id_)
        with transaction(self._engine, writes=True) as connection:
            if connection.execute(delete(api_tokens).where(*which)).rowcount == 0:
                raise NotFound("no-token")
            self._record(connection, "token-ended", name)

    def _change(self, name: str, action: str, detail: Sentence | None = None, **values: Any) -> None:
        with transaction(self._engine, writes=True) as connection:
            row = update(users).where(users.c.name == name).values(**values)
            if connection.execute(row).rowcount == 0:
                raise _unknown(name)
            self._record(connection, action, name, detail)

    def _record(self, connection: Connection, action: str, name: str, detail: Sentence | None = None) -> None:
        at = datetime.now(timezone.utc)
        DatabaseChange(connection).event(at, self._who, action, name, detail)


def _user(row: Row[Any]) -> User:
    return User(
        row.name, UserRole(row.role), row.password_hash, row.epoch, row.created_at, row.address, row.subject
    )


def _token(row: Row[Any]) -> ApiToken:
    return ApiToken(row.id, row.user_name, row.label, UserRole(row.role), row.created_at, row.ends_at)


def _unknown(name: str) -> NotFound:
    return NotFound("no-user", user=name[:80])
