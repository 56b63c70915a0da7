"""One server a database: a lock that ends with its process, so that no clock decides who leads."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, select, text
from sqlalchemy.exc import DBAPIError

from platform_launch.procguard.database.engine import DatabaseError, is_sqlite
from platform_launch.procguard.database.tables import server

_LOCK_KEY = 0x70726F6367756172  # "procguar": PostgreSQL's advisory locks are numbers


@contextmanager
def claimed(engine: Engine) -> Iterator[Connection]:
    """Be the only server of a database. Raises DatabaseError that says who is it already.

    In PostgreSQL it is the connection given that holds the claim.
    """
    with _file_lock(engine) if is_sqlite(engine) else _session_lock(engine) as connection:
        yield connection


def try_session_lock(connection: Connection) -> bool:
    """Take PostgreSQL's lock for as long as a connection lives; False where another one has it."""
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
            f"{path} cannot be written: {error.strerror}", "the folder of the database must be writable"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _taken(engine) from None
        except OSError as error:  # as on Lustre without its mount option flock
            raise DatabaseError(
                f"{path} cannot be locked: {error.strerror}, so that a second server could serve it too",
                "put the database on a disk of this machine, or use PostgreSQL",
            ) from error
        with engine.connect() as connection:
            yield connection
    finally:
        os.close(descriptor)


@contextmanager
def _session_lock(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        if not try_session_lock(connection):
            raise _taken(engine)
        try:
            yield connection
        finally:
            if not connection.closed:
                connection.invalidate()  # back in the pool it would hold the lock


def _taken(engine: Engine) -> DatabaseError:
    """Say who serves this database, as it wrote down when it began."""
    try:
        with engine.connect() as connection:
            row = connection.execute(select(server)).first()
    except DBAPIError:
        row = None  # it has not made its tables yet
    where = engine.url.render_as_string(hide_password=True)
    who = (
        f"{row.host}, process {row.pid}, since {row.since:%Y-%m-%d %H:%M:%S} UTC" if row else "not known yet"
    )
    return DatabaseError(
        f"another server serves {where}: {who}", "use that one, or stop it first, or give this one a database"
    )
