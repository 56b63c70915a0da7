"""The database: SQLite by default, PostgreSQL by URL.

with serving(url) as database:      # as the only server of this database
    Control(database.store, ...)

with accounts(url, who) as users: ...    # also while a server runs
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine, inspect, select
from sqlalchemy.exc import DBAPIError

from platform_launch.procguard.api.refused import Unavailable
from platform_launch.procguard.database.engine import WRITES, DatabaseError, no_server, opened, reason
from platform_launch.procguard.database.store import DatabaseStore, Measurements
from platform_launch.procguard.database.tables import SCHEMA, metadata
from platform_launch.procguard.database.tables import server as server_table
from platform_launch.procguard.database.users import Users
from platform_launch.procguard.database.writer import Writer, claimed
from platform_launch.text import Phrase

__all__ = ["Database", "accounts", "serving"]


@dataclass(frozen=True)
class Database:
    """A database that only this process serves."""

    store: DatabaseStore
    users: Users
    measurements: Measurements


@contextmanager
def serving(url: str) -> Iterator[Database]:
    """Claim a database, create its tables if there are none, and open it.

    Raises LaunchError if another server has it (with its host, pid and start), if it cannot be reached, or if
    its tables are those of another version.
    """
    with opened(url) as engine, claimed(engine) as connection, closing(Writer(engine, connection)) as writer:
        _make_tables(engine)
        try:
            writer.sign()
        except Unavailable as error:
            raise DatabaseError(
                error.phrases[0], "make sure that the database can be written, then start again"
            ) from error
        yield Database(DatabaseStore(engine, writer), Users(engine, "server"), Measurements(engine))


@contextmanager
def accounts(url: str, who: str) -> Iterator[Users]:
    """Open the users alone, for the command line; ``who`` is recorded as the author of changes.

    Raises as :func:`serving` does, and InputError if no server has created this database.
    """
    with opened(url, create=False) as engine:
        if not _is_made(engine):
            raise no_server(engine.url)
        yield Users(engine, who)


def _make_tables(engine: Engine) -> None:
    """Create the tables of a new database. Raises DatabaseError; the caller holds the claim."""
    if _is_made(engine):
        return
    try:
        with engine.connect() as plain:
            connection = plain.execution_options(**{WRITES: True})
            with connection.begin():
                metadata.create_all(connection)
    except DBAPIError as error:
        raise DatabaseError(
            Phrase("the database's tables cannot be created: {problem}", problem=reason(error)),
            "make sure that it is not full, locked or read-only, then start again",
        ) from error


def _is_made(engine: Engine) -> bool:
    """Return whether a server has created its tables here. Raises DatabaseError for those of another
    version.
    """
    try:
        with engine.connect() as connection:
            tables = inspect(connection)
            if not tables.has_table(server_table.name):
                return False
            known = any(column["name"] == "schema" for column in tables.get_columns(server_table.name))
            found = connection.scalar(select(server_table.c.schema)) if known else 0
    except DBAPIError as error:
        raise DatabaseError(
            Phrase("the database cannot be read: {problem}", problem=reason(error)),
            "check its file or server",
        ) from error
    if found not in (None, SCHEMA):
        raise DatabaseError(
            Phrase(
                "the database's tables have schema {found}, this program needs schema {needed}",
                found=found,
                needed=SCHEMA,
            ),
            "use the version of platform-launch that created them, or a new database",
        )
    return True
