"""Groups, nodes, workers and the audit log in the database: written as one transaction a change."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, Table, delete, insert, select, update

from platform_launch.procguard.database.codec import group_of, group_row, node_of, node_row
from platform_launch.procguard.database.engine import OUT_OF_REACH, reason
from platform_launch.procguard.database.tables import events, groups, nodes, workers
from platform_launch.procguard.database.writer import Writer
from platform_launch.procguard.group import Group
from platform_launch.procguard.ledger import Membership, Saved
from platform_launch.procguard.live import Node
from platform_launch.procguard.ranks import WorkerName
from platform_launch.procguard.refused import Unavailable
from platform_launch.procguard.shapes import Event

_LOG = logging.getLogger("procguard.events")
_LOGGED = 1_000
MOST_EVENTS = 1_000
"""In one answer."""

KEPT_EVENTS = 100_000
"""The newest entries of the audit log that stay; older ones are only in the server's own log."""

_FORGET_EVERY = 500


class DatabaseStore:
    """A :class:`~platform_launch.procguard.ledger.Store` of a database that this process serves."""

    def __init__(self, engine: Engine, writer: Writer) -> None:
        self._engine = engine
        self._writer = writer

    def check(self) -> None:
        """Make sure that this process still is the database's server."""
        self._writer.check()

    def load(self) -> Saved:
        """Read everything but events."""
        with self._reading() as connection:
            rows = [
                Membership(WorkerName(row.node, row.number), row.group_name, row.generation)
                for row in connection.execute(select(workers).order_by(workers.c.node, workers.c.number))
            ]
            members: dict[str | None, list[WorkerName]] = {}
            for row in rows:
                members.setdefault(row.group, []).append(row.worker)
            return Saved(
                groups=tuple(
                    group_of(row, tuple(sorted(members.get(row.name, ()))))
                    for row in connection.execute(select(groups).order_by(groups.c.name))
                ),
                nodes=tuple(node_of(row) for row in connection.execute(select(nodes).order_by(nodes.c.name))),
                workers=tuple(rows),
            )

    @contextmanager
    def change(self) -> Iterator[DatabaseChange]:
        """Open a transaction, committed at the end of the block."""
        with self._writer.begin() as connection:
            change = DatabaseChange(connection)
            yield change
        for line in change.said:
            _LOG.info("%s", line)

    def events(self, before: int | None, limit: int) -> list[Event]:
        """Read the newest events, or those before one, newest first."""
        wanted = select(events).order_by(events.c.id.desc()).limit(max(1, min(limit, MOST_EVENTS)))
        if before is not None:
            # No id is larger, whatever is asked for.
            wanted = wanted.where(events.c.id < min(before, 2**53))
        with self._reading() as connection:
            return [
                Event(
                    id=row.id, at=row.at, who=row.who, action=row.action, object=row.object, detail=row.detail
                )
                for row in connection.execute(wanted)
            ]

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except OUT_OF_REACH as error:
            raise Unavailable(f"the database cannot be read: {reason(error)}", "try again later") from error


class DatabaseChange:
    """One open transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.said: list[str] = []

    def put_group(self, group: Group) -> None:
        """Write a group, new or not; not its workers."""
        self._put(groups, {"name": group.name}, group_row(group))

    def delete_group(self, name: str) -> None:
        """Delete a group; its workers are in none then."""
        self._connection.execute(delete(groups).where(groups.c.name == name))

    def put_node(self, node: Node) -> None:
        """Write a node, new or not; not its workers."""
        self._put(nodes, {"name": node.name}, node_row(node))

    def delete_node(self, name: str) -> None:
        """Delete a node and its workers."""
        self._connection.execute(delete(nodes).where(nodes.c.name == name))

    def put_workers(self, rows: Iterable[Membership]) -> None:
        """Write workers, new or not."""
        for row in rows:
            key = {"node": row.worker.node, "number": row.worker.number}
            self._put(workers, key, {"group_name": row.group, "generation": row.generation})

    def delete_workers(self, gone: Iterable[WorkerName]) -> None:
        """Delete workers."""
        for worker in gone:
            self._connection.execute(
                delete(workers).where(workers.c.node == worker.node, workers.c.number == worker.number)
            )

    def event(self, at: datetime, who: str, action: str, on: str, detail: str) -> None:
        """Add an entry to the audit log. No text is refused: what does not fit is cut."""
        row = {"who": who[:64], "action": action[:32], "object": on[:140], "detail": detail[:20_000]}
        clean = {name: text.replace("\0", "\ufffd") for name, text in row.items()}
        key = self._connection.execute(insert(events).values(at=at, **clean)).inserted_primary_key
        if key is not None and key[0] % _FORGET_EVERY == 0:
            self._connection.execute(delete(events).where(events.c.id <= key[0] - KEPT_EVENTS))
        text = " ".join(f"{who}: {action} {on}: {detail}".removesuffix(": ").split())
        self.said.append("".join(one if one.isprintable() else "\ufffd" for one in text[:_LOGGED]))

    def _put(self, table: Table, key: dict[str, Any], values: dict[str, Any]) -> None:
        row = update(table).values(values)
        for name, value in key.items():
            row = row.where(table.c[name] == value)
        if self._connection.execute(row).rowcount == 0:
            self._connection.execute(insert(table).values(**key, **values))
