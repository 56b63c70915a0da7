"""Bring a database's tables up to date: the migrations travel in the package and run when a server starts."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine, inspect, text
from sqlalchemy.exc import DBAPIError

from platform_launch.procguard.database.engine import WRITES, DatabaseError, reason

_MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(engine: Engine, to: str = "head") -> None:
    """Run what is missing, in one transaction; the caller holds the claim. Raises DatabaseError."""
    try:
        if to != "head" or not is_current(engine):
            _upgrade(engine, to)
    except DBAPIError as error:
        raise DatabaseError(
            f"the database's tables cannot be brought up to date: {reason(error)}",
            "see that it is not full, locked or read-only, then start again",
        ) from error


def is_made(engine: Engine) -> bool:
    """Tell whether a server has ever made its tables here."""
    return bool(_revisions(engine))


def is_current(engine: Engine) -> bool:
    """Tell whether nothing is missing."""
    return _revisions(engine) == {newest()}


def newest() -> str:
    """Return the revision of this program's tables: migrations are numbered, as their files are."""
    return max(path.name.partition("_")[0] for path in (_MIGRATIONS / "versions").glob("[0-9]*.py"))


def _revisions(engine: Engine) -> set[str]:
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return set()
        return set(connection.scalars(text("SELECT version_num FROM alembic_version")))


def _upgrade(engine: Engine, to: str) -> None:
    # A tenth of the time that a server takes to start, and seldom needed.
    from alembic import command
    from alembic.config import Config
    from alembic.util.exc import CommandError

    configuration = Config()
    configuration.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    try:
        with engine.connect() as plain:
            connection = plain.execution_options(**{WRITES: True})
            with connection.begin():
                configuration.attributes["connection"] = connection
                command.upgrade(configuration, to)
    except CommandError as error:
        raise DatabaseError(
            f"the database's tables are of a version this program does not know: {error}",
            "run the version of platform-launch that made them, or a newer one",
        ) from error
