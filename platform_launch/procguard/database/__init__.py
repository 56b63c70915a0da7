"""Where ProcGuard keeps what outlives the server: SQLite by default, PostgreSQL by URL.

with serving(url) as database:      # the only server of this database, its tables up to date
    Control(database.store, ...)

with accounts(url, who) as users: ...    # beside a running server too
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from platform_launch.procguard.api.refused import Unavailable
from platform_launch.procguard.database.claim import claimed
from platform_launch.procguard.database.engine import DatabaseError, no_server, opened
from platform_launch.procguard.database.measurements import Measurements
from platform_launch.procguard.database.migrate import is_current, is_made, migrate
from platform_launch.procguard.database.store import DatabaseStore
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
    """Claim a database, bring its tables up to date and open it.

    Raises LaunchError: where another server has it (whose host, pid and start it names), where it cannot be
    reached, or where it is of a newer version than this program.
    """
    with opened(url) as engine, claimed(engine) as connection, closing(Writer(engine, connection)) as writer:
        migrate(engine)
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
        if not is_made(engine):
            raise no_server(engine.url)
        if not is_current(engine):
            with claimed(engine):
                migrate(engine)
        yield Users(engine, who)
