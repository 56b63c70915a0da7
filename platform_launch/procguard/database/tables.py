"""The tables: JSON documents beside the few columns that queries need.

A change of a table or of a stored document increments SCHEMA; a server refuses any other number.
"""

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
    """A time with its zone. SQLite stores none, so all are UTC there."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Convert any zone to UTC."""
        return None if value is None else value.astimezone(timezone.utc)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Add UTC to a time without a zone."""
        if value is None:
            return None
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value


class JsonDocument(TypeDecorator[Any]):
    """A JSON document as ASCII text, which every database accepts."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Write JSON."""
        return None if value is None else json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        """Read JSON."""
        return None if value is None else json.loads(value)


SCHEMA = 2

groups = Table(
    "groups",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("document", JsonDocument, nullable=False),
)
"""``document`` is a :class:`~platform_launch.procguard.core.group.Group`."""

nodes = Table(
    "nodes",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("credential_sha256", String(64), nullable=False, unique=True),
    Column("document", JsonDocument, nullable=False),
)
"""``document`` is a :class:`~platform_launch.procguard.core.registry.NodeRecord`."""

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
    Column("workers", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("document", JsonDocument, nullable=False),
)
"""``workers`` are the names of those with a rank, between bars: ``|gn6-0|gn7-0|``. ``cause`` is why the run
failed, in lower case for searching. ``document`` is a
:class:`~platform_launch.procguard.api.shapes.groups.RunDetail`.
"""

users = Table(
    "users",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("password_hash", Text, nullable=False),
    Column("subject", Text, nullable=False, default=""),
    Column("address", Text, nullable=False, default=""),
    Column("epoch", BigInteger, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)
"""``subject`` is the identity provider's id of the user; empty for users with a password."""

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
    Column("schema", Integer, nullable=False),
    Column("token", String(64), nullable=False),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("since", UtcDateTime, nullable=False),
)
"""One row: the present or last server of this database."""
