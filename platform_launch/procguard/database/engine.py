"""Opens a database by its URL, with errors for people if that fails."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection as SqliteConnection
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from platform_launch.errors import InputError, InstallationError, LaunchError, shown
from platform_launch.extras import install_extra
from platform_launch.procguard.api.refused import Unavailable
from platform_launch.text import Phrase

BUSY_TIMEOUT_S = 3.0
"""How long to wait for another process's lock on SQLite before answering 503."""

OUT_OF_REACH = (DBAPIError, PoolTimeoutError)
"""What reading raises if the database fails, or if all connections wait for one that hangs."""

WRITES = "procguard_writes"
"""Marks a connection that will write: SQLite must know at the start of a transaction."""


class DatabaseError(LaunchError):
    """The database cannot be reached or used, or another server has it."""

    exit_code = 75


def database_url(text: str) -> URL:
    """Parse a URL of a SQLite file or of PostgreSQL. Raises InputError, InstallationError."""
    expected = "expected sqlite:////path/to/procguard.db or postgresql://user:password@host/database"
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise InputError("the database is not a URL", expected) from error
    backend = url.get_backend_name()
    if backend == "sqlite":
        if not url.database or url.database == ":memory:" or url.database.startswith("file:") or "\0" in text:
            raise InputError("the database is not a file, and would be lost with the server", expected)
        return url.set(drivername="sqlite+pysqlite", database=str(Path(url.database).resolve()))
    if backend != "postgresql":
        raise InputError(Phrase("database {kind}: not supported", kind=shown(url.drivername)), expected)
    if importlib.util.find_spec("psycopg") is None:
        raise InstallationError("a PostgreSQL database needs the package psycopg", install_extra("postgres"))
    return url.set(drivername="postgresql+psycopg")


@contextmanager
def transaction(engine: Engine, *, writes: bool = False) -> Iterator[Connection]:
    """Yield a connection whose work is committed at the end.

    Raises Unavailable if the database cannot be reached or is locked.
    """
    try:
        with engine.connect() as plain:
            connection = plain.execution_options(**{WRITES: writes})
            with connection.begin():
                yield connection
    except OUT_OF_REACH as error:
        raise Unavailable("database-away", reason=reason(error)) from error


@contextmanager
def opened(text: str, *, create: bool = True) -> Iterator[Engine]:
    """Open a database and close it at the end. Raises LaunchError if it cannot be reached.

    Without ``create``, a missing file is an InputError.
    """
    url = database_url(text)
    if not create and url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        raise no_server(url)
    engine = _sqlite(url) if url.get_backend_name() == "sqlite" else _postgresql(url)
    shown_url = url.render_as_string(hide_password=True)
    try:
        try:
            with engine.connect():
                pass
        except (DBAPIError, OSError) as error:
            raise DatabaseError(
                Phrase(
                    "the database {url} cannot be opened: {problem}", url=shown_url, problem=reason(error)
                ),
                "correct the URL in the configuration, or make sure that it can be reached and written",
            ) from error
        yield engine
    finally:
        engine.dispose()


def no_server(url: URL) -> InputError:
    """Return the error for a database that no server has created."""
    where = url.database if url.get_backend_name() == "sqlite" else url.render_as_string(hide_password=True)
    return InputError(
        Phrase("there is no server's database at {place}", place=where),
        "pass the same --config, --data or --database as to the server, and start the server first",
    )


def is_sqlite(engine: Engine) -> bool:
    """Return whether this is a SQLite file."""
    return engine.dialect.name == "sqlite"


def reason(error: BaseException) -> str:
    """Return the database driver's message in one line."""
    original = getattr(error, "orig", None) or error
    return " ".join(str(original).split()) or type(original).__name__


def _sqlite(url: URL) -> Engine:
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            path.touch(mode=0o600)  # SQLite's other files get the same permissions
    except OSError as error:
        raise DatabaseError(
            Phrase("the database {file} cannot be written: {problem}", file=path, problem=error.strerror),
            "correct `data` or `database` in the configuration",
        ) from error
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: SqliteConnection, record: Any) -> None:  # noqa: ARG001 - SQLAlchemy's signature
    connection.isolation_level = None  # transactions are begun below, not implicitly by the driver
    # FULL: a generation must not be assigned twice after a power failure.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    # A reader that starts to write is refused at once if another process writes; a declared writer waits.
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _postgresql(url: URL) -> Engine:
    return create_engine(
        url,
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": 10,
            "application_name": "procguard",
            # Somebody else's lock or a broken network must not block the control loop forever.
            "options": "-c lock_timeout=3000 -c statement_timeout=15000 -c timezone=UTC"
            # The other side must notice that too, or it keeps our claim for hours.
            " -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3",
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 20_000,
        },
    )
