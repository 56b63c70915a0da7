"""Where ProcGuard keeps what outlives the server: SQLite by default, PostgreSQL by URL.

with serving(url) as database:      # the only server of this database, its tables up to date
    Control(database.store, ...)

with accounts(url, who) as users: ...    # beside a running server too
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine, inspect, select
from sqlalchemy.exc import DBAPIError

from platform_launch.procguard.api.refused import Unavailable
from platform_launch.procguard.database.claim import claimed
from platform_launch.procguard.database.engine import WRITES, DatabaseError, no_server, opened, reason
from platform_launch.procguard.database.measurements import Measurements
from platform_launch.procguard.database.store import DatabaseStore
from platform_launch.procguard.database.tables import SCHEMA, metadata
from platform_launch.procguard.database.tables import server as server_table
from platform_launch.procguard.database.users import Users
from platform_launch.procguard.database.writer import Writer

__all__ = ["Database", "accounts", "serving"]


@dataclass(frozen=True)
class Database:
    """A database that this process alone serves."""

    store: DatabaseStore
    users: Users
    measurements: Measurements


@contextmanager
def serving(url: str) -> Iterator[Database]:
    """Claim a database, make its tables if it has none, and open it.

    Raises LaunchError: where another server has it (whose host, pid and start it names), where it cannot be
    reached, or where its tables are those of another version.
    """
    with opened(url) as engine, claimed(engine) as connection, closing(Writer(engine, connection)) as writer:
        _make_tables(engine)
        try:
            writer.sign()
        except Unavailable as error:
            raise DatabaseError(
                str(error), "see that the database can be written, then start again"
            ) from error
        yield Database(DatabaseStore(engine, writer), Users(engine, "server"), Measurements(engine))


@contextmanager
def accounts(url: str, who: str) -> Iterator[Users]:
    """Open the users alone, for the command line: ``who`` changes them.

    Raises as :func:`serving` does, and InputError where no server has made this database.
    """
    with opened(url, create=False) as engine:
        if not _is_made(engine):
            raise no_server(engine.url)
        yield Users(engine, who)


def _make_tables(engine: Engine) -> None:
    """Make the tables of a new database. Raises DatabaseError; the caller holds the claim."""
    if _is_made(engine):
        return
    try:
        with engine.connect() as plain:
            connection = plain.execution_options(**{WRITES: True})
            with connection.begin():
                metadata.create_all(connection)
    except DBAPIError as error:
        raise DatabaseError(
            f"the database's tables cannot be made: {reason(error)}",
            "see that it is not full, locked or read-only, then start again",
        ) from error


def _is_made(engine: Engine) -> bool:
    """Tell whether a server has made its tables here. Raises DatabaseError for those of another version."""
    try:
        with engine.connect() as connection:
            tables = inspect(connection)
            if not tables.has_table(server_table.name):
                return False
            known = any(column["name"] == "schema" for column in tables.get_columns(server_table.name))
            found = connection.scalar(select(server_table.c.schema)) if known else 0
    except DBAPIError as error:
        raise DatabaseError(f"the database cannot be read: {reason(error)}", "see that it can be") from error
    if found not in (None, SCHEMA):
        raise DatabaseError(
            f"the database's tables are of schema {found}, this program needs schema {SCHEMA}",
            "run the version of platform-launch that made them, or give this server a new database",
        )
    return True
