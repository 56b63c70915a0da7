"""The connection for all changes by the only server of a database.

The claim is a lock that ends with its process, so that no clock decides who leads.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from sqlalchemy import Connection, Engine, select, text, update
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from platform_launch.procguard.api.refused import Superseded, Unavailable
from platform_launch.procguard.database.engine import WRITES, DatabaseError, is_sqlite, reason
from platform_launch.procguard.database.tables import SCHEMA, server
from platform_launch.text import Phrase

_LOCK_KEY = 0x70726F6367756172  # "procguar": PostgreSQL's advisory locks are numbers


@contextmanager
def claimed(engine: Engine) -> Iterator[Connection]:
    """Become the only server of a database. Raises DatabaseError that names the present one.

    In PostgreSQL the yielded connection holds the claim.
    """
    with _file_lock(engine) if is_sqlite(engine) else _session_lock(engine) as connection:
        yield connection


def try_session_lock(connection: Connection) -> bool:
    """Acquire PostgreSQL's lock for the life of a connection; False if another one holds it."""
    with connection.begin():
        return bool(connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LOCK_KEY}))


@contextmanager
def _file_lock(engine: Engine) -> Iterator[Connection]:
    path = Path(f"{engine.url.database}.lock")
    try:
        # Never removed: a lock on a removed file excludes nobody.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DatabaseError(
            Phrase("{file} cannot be written: {problem}", file=path, problem=error.strerror),
            "make the database's folder writable",
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use_error(engine) from None
        except OSError as error:  # such as Lustre without its mount option flock
            raise DatabaseError(
                Phrase(
                    "{file} cannot be locked: {problem}; a second server could use it too",
                    file=path,
                    problem=error.strerror,
                ),
                "move the database to a local disk, or use PostgreSQL",
            ) from error
        with engine.connect() as connection:
            yield connection
    finally:
        os.close(descriptor)


@contextmanager
def _session_lock(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        if not try_session_lock(connection):
            raise _in_use_error(engine)
        try:
            yield connection
        finally:
            if not connection.closed:
                connection.invalidate()  # in the pool it would keep the lock


def _in_use_error(engine: Engine) -> DatabaseError:
    """Return the error that names the server of this database, as it recorded itself."""
    try:
        with engine.connect() as connection:
            row = connection.execute(select(server)).first()
    except DBAPIError:
        row = None  # it has not created its tables yet
    where = engine.url.render_as_string(hide_password=True)
    who = Phrase("unknown")
    if row:
        since = f"{row.since:%Y-%m-%d %H:%M:%S} UTC"
        who = Phrase("{host}, process {pid}, since {time}", host=row.host, pid=row.pid, time=since)
    return DatabaseError(
        Phrase("another server uses {database}: {who}", database=where, who=who),
        "use that one, stop it first, or use another database",
    )


_NOT_NOW = (OperationalError, InternalError, InterfaceError, PoolTimeoutError)
"""Locked, full, read-only, gone: the database's state, not the statement's fault."""


class Writer:
    """Writes on the connection that holds the claim; used by one thread at a time.

    In PostgreSQL a lost connection takes the claim along. It is claimed again before the next change, but
    only if no other server has served in between: this one's memory lacks the other one's changes.
    """

    def __init__(self, engine: Engine, connection: Connection) -> None:
        self._engine = engine
        self._connection: Connection | None = connection.execution_options(**{WRITES: True})
        self._token = secrets.token_hex(16)

    def sign(self) -> None:
        """Record this process as the server of the database."""
        row = {
            "schema": SCHEMA,
            "token": self._token,
            "host": socket.gethostname()[:255],
            "pid": os.getpid(),
            "since": datetime.now(timezone.utc),
        }
        with self.begin() as connection:
            if connection.execute(update(server).where(server.c.id == 1).values(row)).rowcount == 0:
                connection.execute(server.insert().values(id=1, **row))

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open a transaction, committed at the end of the block.

        Raises Unavailable, and nothing is changed then; Superseded if another server has taken over.
        """
        try:
            connection = self._connected()
            with connection.begin():
                yield connection
        except _NOT_NOW as error:
            if isinstance(error, DBAPIError) and error.connection_invalidated:
                self.close()
            raise Unavailable("database-not-written", reason=reason(error)) from error

    def check(self) -> None:
        """Check that the claim still holds. Raises as :meth:`begin` does."""
        if not is_sqlite(self._engine):
            with self.begin() as connection:
                self._verify(connection)

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = self._engine.connect().execution_options(**{WRITES: True})
            try:
                self._claim_again(connection)
            except BaseException:
                connection.invalidate()
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _claim_again(self, connection: Connection) -> None:
        if is_sqlite(self._engine):
            return
        locked = try_session_lock(connection)
        with connection.begin():
            self._verify(connection)
        if not locked:  # usually by the lost connection, which the database has not noticed yet
            raise Unavailable("database-lock-held")

    def _verify(self, connection: Connection) -> None:
        if connection.scalar(select(server.c.token).where(server.c.id == 1)) != self._token:
            raise Superseded("database-taken")

    def close(self) -> None:
        """Close the connection, which in PostgreSQL also releases the claim."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(DBAPIError):
                connection.invalidate()
                connection.close()
