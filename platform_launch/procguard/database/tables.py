"""The tables. What changes here needs a migration; a test compares the two."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Dialect,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time with its zone: SQLite keeps none, so all are UTC there."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Turn any zone into UTC."""
        return None if value is None else value.astimezone(timezone.utc)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Give a time without a zone the one it was written in."""
        if value is None:
            return None
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value


class JsonDocument(TypeDecorator[Any]):
    """A JSON document as text. ASCII, so that no character of it is one a database refuses."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Write JSON."""
        return None if value is None else json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        """Read JSON."""
        return None if value is None else json.loads(value)


groups = Table(
    "groups",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("settings", JsonDocument, nullable=False),
    Column("phase", String(16), nullable=False),
    Column("phase_since", UtcDateTime, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("run_number", BigInteger, nullable=False, server_default="0"),
    Column("requested_by", String(64), nullable=False, server_default=""),
    Column("requested_at", UtcDateTime),
    Column("previous_failure", JsonDocument),
    Column("run", JsonDocument),
    Column("restarts_used", Integer, nullable=False),
    Column("then_phase", String(16)),
    Column("failure", JsonDocument),
    Column("started_at", UtcDateTime),
    Column("ended_at", UtcDateTime),
)

nodes = Table(
    "nodes",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("instance", String(64), nullable=False),
    Column("workers", Integer, nullable=False),
    Column("about", JsonDocument, nullable=False),
    Column("credential_sha256", String(64), nullable=False, unique=True),
    Column("drained_by", String(64), nullable=False, server_default=""),
)

workers = Table(
    "workers",
    metadata,
    Column("node", String(64), ForeignKey("nodes.name", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("group_name", String(64), ForeignKey("groups.name", ondelete="SET NULL"), index=True),
    Column("generation", BigInteger, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("group_name", String(64), ForeignKey("groups.name", ondelete="CASCADE"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("generation", BigInteger, nullable=False),
    Column("requested_by", String(64), nullable=False),
    Column("requested_at", UtcDateTime, nullable=False),
    Column("restart", Integer, nullable=False),
    Column("run", JsonDocument, nullable=False),
    Column("workers", Text, nullable=False),
    Column("started_at", UtcDateTime),
    Column("ended_at", UtcDateTime),
    Column("outcome", String(16)),
    Column("failure", JsonDocument),
)
"""``workers`` are the names of those with a rank, each between bars: ``|gn6-0|gn7-0|``."""

users = Table(
    "users",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("password_hash", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)

api_tokens = Table(
    "api_tokens",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("user_name", String(64), ForeignKey("users.name", ondelete="CASCADE"), nullable=False),
    Column("label", String(64), nullable=False),
    Column("role", String(16), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("ends_at", UtcDateTime, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("who", String(64), nullable=False),
    Column("action", String(32), nullable=False),
    Column("object", String(140), nullable=False),
    # What versions before "sentence" wrote: English, shown as it is.
    Column("detail", Text, nullable=False),
    Column("sentence", JsonDocument),
    sqlite_autoincrement=True,
)

measurements = Table(
    "measurements",
    metadata,
    Column("kind", String(16), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("at", UtcDateTime, primary_key=True),
    Column("measured", JsonDocument, nullable=False),
)

server = Table(
    "server",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("token", String(64), nullable=False),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("since", UtcDateTime, nullable=False),
)
"""One row: who serves this database, or did last."""
