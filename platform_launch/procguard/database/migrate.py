"""Bring a database's tables up to date: the migrations travel in the package and run when a server starts."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from platform_launch.procguard.database.engine import WRITES, DatabaseError, reason

_MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(engine: Engine, to: str = "head") -> None:
    """Run what is missing, in one transaction; the caller holds the claim. Raises DatabaseError."""
    try:
        with engine.connect() as plain:
            connection = plain.execution_options(**{WRITES: True})
            with connection.begin():
                configuration = Config()
                configuration.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
                configuration.attributes["connection"] = connection
                command.upgrade(configuration, to)
    except CommandError as error:
        raise DatabaseError(
            f"the database's tables are of a version this program does not know: {error}",
            "run the version of platform-launch that made them, or a newer one",
        ) from error
    except DBAPIError as error:
        raise DatabaseError(
            f"the database's tables cannot be brought up to date: {reason(error)}",
            "see that it is not full, locked or read-only, then start again",
        ) from error


def is_made(engine: Engine) -> bool:
    """Tell whether a server has ever made its tables here."""
    return bool(_heads(engine))


def is_current(engine: Engine) -> bool:
    """Tell whether nothing is missing."""
    return _heads(engine) == set(ScriptDirectory(str(_MIGRATIONS)).get_heads())


def _heads(engine: Engine) -> set[str]:
    with engine.connect() as connection:
        return set(MigrationContext.configure(connection).get_current_heads())
