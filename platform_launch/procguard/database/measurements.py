"""Measurements over days: a row per group or node and interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone

from sqlalchemy import Engine, delete, insert, select

from platform_launch.procguard.api.shapes.history import ChartKind
from platform_launch.procguard.database.engine import transaction
from platform_launch.procguard.database.tables import measurements

_MOST_ROWS = 5_000


class Measurements:
    """The measurements of a database, on separate connections that no heartbeat waits for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def write(self, at: datetime, rows: Iterable[tuple[ChartKind, str, Mapping[str, float | None]]]) -> None:
        """Write one row per subject. Raises Unavailable."""
        values = [
            {
                "kind": kind.value,
                "name": name,
                "at": at,
                "measured": {series: round(value, 3) for series, value in found.items() if value is not None},
            }
            for kind, name, found in rows
        ]
        if values:
            with transaction(self._engine, writes=True) as connection:
                connection.execute(insert(measurements), values)

    def read(self, kind: ChartKind, name: str) -> list[tuple[datetime, dict[str, float | None]]]:
        """Read a subject's rows, oldest first. Raises Unavailable."""
        wanted = (
            select(measurements.c.at, measurements.c.measured)
            .where(measurements.c.kind == kind.value, measurements.c.name == name)
            .order_by(measurements.c.at.desc())
            .limit(_MOST_ROWS)
        )
        with transaction(self._engine) as connection:
            return [(row.at, row.measured) for row in connection.execute(wanted)][::-1]

    def delete_older(self, kind: ChartKind, days: int) -> None:
        """Delete older rows. Raises Unavailable."""
        before = datetime.now(timezone.utc) - timedelta(days=days)
        with transaction(self._engine, writes=True) as connection:
            connection.execute(
                delete(measurements).where(measurements.c.kind == kind.value, measurements.c.at < before)
            )
