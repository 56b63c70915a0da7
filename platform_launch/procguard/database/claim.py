"""One server per database: a lock that ends with its process, so that no clock decides who leads."""

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
            raise _taken(engine) from None
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
            raise _taken(engine)
        try:
            yield connection
        finally:
            if not connection.closed:
                connection.invalidate()  # in the pool it would keep the lock


def _taken(engine: Engine) -> DatabaseError:
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
