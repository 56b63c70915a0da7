"""Groups, nodes, workers and the audit log in the database: written as one transaction a change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Table, delete, insert, select, update

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.shapes.events import AuditEvent, EventFilter
from platform_launch.procguard.core.group import Group
from platform_launch.procguard.core.ledger import WorkerRow
from platform_launch.procguard.core.registry import NodeRecord
from platform_launch.procguard.core.runs import RunRecord
from platform_launch.procguard.database.codec import (
    audit_event,
    event_of,
    group_of,
    group_row,
    new_run_row,
    node_of,
    node_row,
    run_record_of,
    run_row,
    sentence_document,
)
from platform_launch.procguard.database.engine import transaction
from platform_launch.procguard.database.tables import events, groups, nodes, runs, workers
from platform_launch.procguard.database.writer import Writer
from platform_launch.sentences import Sentence
from platform_launch.text import escaped

_LOG = logging.getLogger("procguard.events")
_LOGGED = 1_000
MOST_EVENTS = 1_000
"""In one answer."""

KEPT_EVENTS = 100_000
"""The newest entries of the audit log that stay; older ones are only in the server's own log."""

KEPT_RUNS = 500
"""Of each group."""

_OF_AGENTS = (
    "joined",
    "rejoined",
    "taken-over",
    "join-refused",
    "join-failed",
    "agents-lost",
    "agents-back",
    "login",
)
"""What agents cause; a fifth of the others stays of them, so that they push out nobody's."""

_FORGET_EVERY = 500


class DatabaseStore:
    """A :class:`~platform_launch.procguard.core.ledger.GroupStore` of a database that this process serves."""

    def __init__(self, engine: Engine, writer: Writer) -> None:
        self._engine = engine
        self._writer = writer
        self.on_event: Callable[[AuditEvent], None] = lambda _event: None
        """Hears every entry of the audit log that this server wrote, once it is written."""

    def check(self) -> None:
        """Make sure that this process still is the database's server."""
        self._writer.check()

    def load(self) -> tuple[list[Group], list[NodeRecord], list[WorkerRow]]:
        """Read everything but events: groups, each with its workers, nodes and workers."""
        with transaction(self._engine) as connection:
            rows = [
                WorkerRow(WorkerName(row.node, row.number), row.group_name, row.generation)
                for row in connection.execute(select(workers).order_by(workers.c.node, workers.c.number))
            ]
            members: dict[str | None, list[WorkerName]] = {}
            for row in rows:
                members.setdefault(row.group, []).append(row.worker)
            found = [
                group_of(row, tuple(sorted(members.get(row.name, ()))))
                for row in connection.execute(select(groups).order_by(groups.c.name))
            ]
            return (
                found,
                [node_of(row) for row in connection.execute(select(nodes).order_by(nodes.c.name))],
                rows,
            )

    @contextmanager
    def change(self) -> Iterator[DatabaseChange]:
        """Open a transaction, committed at the end of the block."""
        with self._writer.begin() as connection:
            change = DatabaseChange(connection)
            yield change
        for line in change.lines:
            _LOG.info("%s", line)
        for event in change.events:
            self.on_event(event)

    def events(self, before: int | None, limit: int, chosen: EventFilter) -> list[AuditEvent]:
        """Read the newest events that are chosen, or those before one, newest first."""
        wanted = select(events).order_by(events.c.id.desc()).limit(max(1, min(limit, MOST_EVENTS)))
        if before is not None:
            # No id is larger, whatever is asked for.
            wanted = wanted.where(events.c.id < min(before, 2**53))
        for column, text in ((events.c.object, chosen.on), (events.c.who, chosen.who)):
            if text:
                wanted = wanted.where(column == text)
        if chosen.action:
            wanted = wanted.where(events.c.action == chosen.action)
        with transaction(self._engine) as connection:
            return [event_of(row) for row in connection.execute(wanted)]

    def runs(self, group: str, before: int | None, limit: int) -> list[RunRecord]:
        """Read the newest runs of a group, or those before one, newest first."""
        wanted = select(runs).where(runs.c.group_name == group).order_by(runs.c.number.desc())
        if before is not None:
            wanted = wanted.where(runs.c.number < min(before, 2**53))
        with transaction(self._engine) as connection:
            return [run_record_of(row) for row in connection.execute(wanted.limit(max(1, min(limit, 500))))]

    def run(self, group: str, number: int) -> RunRecord | None:
        """Read a run."""
        wanted = select(runs).where(runs.c.group_name == group, runs.c.number == min(number, 2**53))
        with transaction(self._engine) as connection:
            row = connection.execute(wanted).first()
            return run_record_of(row) if row else None

    def runs_of(self, worker: str, generations: Sequence[int]) -> list[tuple[int, str, int]]:
        """Read what a worker's generations were: generation, group and the number of the run there."""
        wanted = select(runs.c.generation, runs.c.group_name, runs.c.number).where(
            runs.c.generation.in_(generations), runs.c.workers.contains(f"|{worker}|", autoescape=True)
        )
        with transaction(self._engine) as connection:
            return [(row.generation, row.group_name, row.number) for row in connection.execute(wanted)]


class DatabaseChange:
    """One open transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.lines: list[str] = []
        self.events: list[AuditEvent] = []

    def put_group(self, group: Group) -> None:
        """Write a group, new or not; not its workers."""
        self._put(groups, {"name": group.name}, group_row(group))

    def delete_group(self, name: str) -> None:
        """Delete a group; its workers are in none then."""
        self._connection.execute(delete(groups).where(groups.c.name == name))

    def put_run(self, record: RunRecord) -> None:
        """Write a run into its group's history, new or not. The oldest ones are forgotten."""
        key = (runs.c.group_name == record.group, runs.c.number == record.number)
        if self._connection.execute(update(runs).where(*key).values(run_row(record))).rowcount == 0:
            row = {"group_name": record.group, "number": record.number, **new_run_row(record)}
            self._connection.execute(insert(runs).values(row))
            oldest = record.number - KEPT_RUNS
            self._connection.execute(
                delete(runs).where(runs.c.group_name == record.group, runs.c.number <= oldest)
            )

    def put_node(self, node: NodeRecord) -> None:
        """Write a node, new or not; not its workers."""
        self._put(nodes, {"name": node.name}, node_row(node))

    def delete_node(self, name: str) -> None:
        """Delete a node and its workers."""
        self._connection.execute(delete(nodes).where(nodes.c.name == name))

    def put_workers(self, rows: Iterable[WorkerRow]) -> None:
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

    def event(self, at: datetime, who: str, action: str, on: str, detail: Sentence | None = None) -> None:
        """Add an entry to the audit log. No text is refused: what does not fit is cut."""
        row = {"who": who[:64], "action": action[:32], "object": on[:140]}
        clean = {name: text.replace("\0", "\ufffd") for name, text in row.items()}
        values = {**clean, "detail": "", "sentence": sentence_document(detail)}
        key = self._connection.execute(insert(events).values(at=at, **values)).inserted_primary_key
        if key is not None and key[0] % _FORGET_EVERY == 0:
            self._forget(events.c.action.in_(_OF_AGENTS), KEPT_EVENTS // 5)
            self._forget(events.c.action.not_in(_OF_AGENTS), KEPT_EVENTS)
        event = audit_event(detail, "", id=key[0] if key else 0, at=at, **clean)
        self.events.append(event)
        text = " ".join(f"{who}: {action} {on}: {event.detail}".removesuffix(": ").split())
        self.lines.append(escaped(text[:_LOGGED]))

    def _forget(self, which: ColumnElement[bool], kept: int) -> None:
        """Remove all but the newest entries of one kind."""
        newest = select(events.c.id).where(which).order_by(events.c.id.desc())
        oldest = self._connection.scalar(newest.offset(kept).limit(1))
        if oldest is not None:
            self._connection.execute(delete(events).where(which, events.c.id <= oldest))

    def _put(self, table: Table, key: dict[str, Any], values: dict[str, Any]) -> None:
        row = update(table).values(values)
        for name, value in key.items():
            row = row.where(table.c[name] == value)
        if self._connection.execute(row).rowcount == 0:
            self._connection.execute(insert(table).values(**key, **values))
