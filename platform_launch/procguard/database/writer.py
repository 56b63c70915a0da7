"""The connection for all changes by the server."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone

from sqlalchemy import Connection, Engine, select, update
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from platform_launch.procguard.api.refused import Superseded, Unavailable
from platform_launch.procguard.database.claim import try_session_lock
from platform_launch.procguard.database.engine import WRITES, is_sqlite, reason
from platform_launch.procguard.database.tables import SCHEMA, server

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
