"""Groups, nodes, workers, the audit log and measurements in the database, one transaction per change."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, Table, delete, insert, select, update

from platform_launch.procguard.api.english import english
from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.shapes.groups import RunDetail, RunShape
from platform_launch.procguard.api.shapes.history import AuditEvent, ChartKind, EventFilter
from platform_launch.procguard.api.shapes.logs import LogRun
from platform_launch.procguard.core.group import Group
from platform_launch.procguard.core.registry import NodeRecord
from platform_launch.procguard.core.world import WorkerRow, World
from platform_launch.procguard.database.engine import transaction
from platform_launch.procguard.database.tables import events, groups, measurements, nodes, runs, workers
from platform_launch.procguard.database.writer import Writer
from platform_launch.sentences import Sentence, quoted
from platform_launch.text import escaped

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


_LOG = logging.getLogger("procguard.events")
_LOGGED = 1_000
_LONGEST_EVENT = 40_000
_LONGEST_QUOTED = 20_000
MOST_EVENTS = 1_000
"""Per answer."""

KEPT_EVENTS = 100_000
"""Entries of the audit log that are kept; older ones are only in the server's own log."""

KEPT_RUNS = 500
"""Per group."""

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
"""Events caused by agents; a fifth as many of them are kept, so that they displace no others."""

_FORGET_EVERY = 500


class DatabaseStore:
    """The groups, nodes, workers, runs and audit log of a database that this process serves.

    Each method raises Unavailable.
    """

    def __init__(self, engine: Engine, writer: Writer) -> None:
        self._engine = engine
        self._writer = writer
        self.on_event: Callable[[AuditEvent], None] = lambda _event: None
        """Called with every entry of the audit log this server wrote, once it is committed."""

    def check(self) -> None:
        """Check that this process is still the database's server."""
        self._writer.check()

    def load(self) -> tuple[list[Group], list[NodeRecord], list[WorkerRow]]:
        """Read everything but events: groups with their workers, nodes and workers."""
        with transaction(self._engine) as connection:
            rows = [
                WorkerRow(WorkerName(row.node, row.number), row.group_name, row.generation)
                for row in connection.execute(select(workers).order_by(workers.c.node, workers.c.number))
            ]
            members: dict[str | None, list[WorkerName]] = {}
            for row in rows:
                members.setdefault(row.group, []).append(row.worker)
            found = [
                Group.model_validate({**row.document, "workers": sorted(members.get(row.name, ()))})
                for row in connection.execute(select(groups).order_by(groups.c.name))
            ]
            return (
                found,
                [
                    NodeRecord.model_validate(document)
                    for document in connection.scalars(select(nodes.c.document).order_by(nodes.c.name))
                ],
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
        """Read the newest selected events, or those before one, newest first."""
        wanted = select(events).order_by(events.c.id.desc()).limit(max(1, min(limit, MOST_EVENTS)))
        if before is not None:
            # No id is larger, whatever is requested.
            wanted = wanted.where(events.c.id < min(before, 2**53))
        for column, text in ((events.c.object, chosen.on), (events.c.who, chosen.who)):
            if text:
                wanted = wanted.where(column == text)
        if chosen.action:
            wanted = wanted.where(events.c.action == chosen.action)
        with transaction(self._engine) as connection:
            return [_event(row) for row in connection.execute(wanted)]

    def runs(self, group: str, before: int | None, limit: int, cause: str = "") -> list[RunShape]:
        """Read the newest runs of a group, or those before one, newest first, filtered by ``cause``."""
        wanted = select(runs.c.document).where(runs.c.group_name == group).order_by(runs.c.number.desc())
        if before is not None:
            wanted = wanted.where(runs.c.number < min(before, 2**53))
        if cause:
            wanted = wanted.where(runs.c.cause.contains(cause.lower().replace("\0", ""), autoescape=True))
        with transaction(self._engine) as connection:
            return [
                RunShape.model_validate({name: document[name] for name in RunShape.model_fields})
                for document in connection.scalars(wanted.limit(max(1, min(limit, 500))))
            ]

    def run(self, group: str, number: int) -> RunDetail | None:
        """Read a run."""
        wanted = select(runs.c.document).where(
            runs.c.group_name == group, runs.c.number == min(number, 2**53)
        )
        with transaction(self._engine) as connection:
            document = connection.scalar(wanted)
            return RunDetail.model_validate(document) if document else None

    def runs_of(self, worker: str, generations: Sequence[int]) -> list[LogRun]:
        """Read the runs of a worker's generations."""
        wanted = select(runs.c.generation, runs.c.group_name, runs.c.number).where(
            runs.c.generation.in_(generations), runs.c.workers.contains(f"|{worker}|", autoescape=True)
        )
        with transaction(self._engine) as connection:
            return [
                LogRun(generation=row.generation, group=row.group_name, number=row.number)
                for row in connection.execute(wanted)
            ]


class DatabaseChange:
    """One open transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.lines: list[str] = []
        self.events: list[AuditEvent] = []

    def write_group(self, group: Group) -> None:
        """Write a group, new or not, without its workers."""
        self._upsert(groups, {"name": group.name}, {"document": group.model_dump(mode="json")})

    def delete_group(self, name: str) -> None:
        """Delete a group; its workers stay, in no group."""
        self._connection.execute(delete(groups).where(groups.c.name == name))

    def write_run(self, run: RunDetail) -> None:
        """Write a run into its group's history, new or not. The oldest ones are deleted."""
        failure = run.failure
        row = {
            "generation": run.generation,
            "workers": "".join(f"|{place.worker}" for place in run.places) + "|",
            "cause": f"{failure.worker or ''} {failure.text}\n{failure.verdict}".lower() if failure else "",
            "document": run.model_dump(mode="json"),
        }
        self._upsert(runs, {"group_name": run.group, "number": run.number}, row)
        self._connection.execute(
            delete(runs).where(runs.c.group_name == run.group, runs.c.number <= run.number - KEPT_RUNS)
        )

    def write_node(self, node: NodeRecord) -> None:
        """Write a node, new or not, without its workers."""
        self._upsert(
            nodes,
            {"name": node.name},
            {"credential_sha256": node.credential_sha256, "document": node.model_dump(mode="json")},
        )

    def delete_node(self, name: str) -> None:
        """Delete a node and its workers."""
        self._connection.execute(delete(nodes).where(nodes.c.name == name))

    def write_workers(self, rows: Iterable[WorkerRow]) -> None:
        """Write workers, new or not."""
        for row in rows:
            key = {"node": row.worker.node, "number": row.worker.number}
            self._upsert(workers, key, {"group_name": row.group, "generation": row.generation})

    def delete_workers(self, removed: Iterable[WorkerName]) -> None:
        """Delete workers."""
        for worker in removed:
            self._connection.execute(
                delete(workers).where(workers.c.node == worker.node, workers.c.number == worker.number)
            )

    def event(self, at: datetime, who: str, action: str, on: str, detail: Sentence | None = None) -> None:
        """Add an entry to the audit log. Long texts are cut, never refused."""
        row = {"who": who[:64], "action": action[:32], "object": on[:140]}
        clean = {name: text.replace("\0", "\ufffd") for name, text in row.items()}
        detail = _short_enough(detail)
        values = {**clean, "sentence": detail.document() if detail else None}
        key = self._connection.execute(insert(events).values(at=at, **values)).inserted_primary_key
        if key is not None and key[0] % _FORGET_EVERY == 0:
            self._forget(events.c.action.in_(_OF_AGENTS), KEPT_EVENTS // 5)
            self._forget(events.c.action.not_in(_OF_AGENTS), KEPT_EVENTS)
        event = _audit_event(detail, id=key[0] if key else 0, at=at, **clean)
        self.events.append(event)
        text = " ".join(f"{who}: {action} {on}: {event.detail}".removesuffix(": ").split())
        self.lines.append(escaped(text[:_LOGGED]))

    def _forget(self, which: ColumnElement[bool], kept: int) -> None:
        """Delete all but the newest entries of one kind."""
        newest = select(events.c.id).where(which).order_by(events.c.id.desc())
        oldest = self._connection.scalar(newest.offset(kept).limit(1))
        if oldest is not None:
            self._connection.execute(delete(events).where(which, events.c.id <= oldest))

    def _upsert(self, table: Table, key: dict[str, Any], values: dict[str, Any]) -> None:
        row = update(table).values(values)
        for name, value in key.items():
            row = row.where(table.c[name] == value)
        if self._connection.execute(row).rowcount == 0:
            self._connection.execute(insert(table).values(**key, **values))


class Ledger:
    """The world and the lock for changing it. ``world`` may be read at any time, as a whole."""

    def __init__(self, store: DatabaseStore) -> None:
        self.store = store
        self.writing = threading.RLock()
        groups, self.nodes, workers = store.load()
        self.world = World({group.name: group for group in groups}, {row.worker: row for row in workers})

    @contextmanager
    def change(self, world: World) -> Iterator[DatabaseChange]:
        """Write a change, then replace ``world``; hold ``writing`` throughout.

        Raises Unavailable; nothing has changed then.
        """
        with self.store.change() as change:
            yield change
        self.world = world


def _short_enough(detail: Sentence | None) -> Sentence | None:
    """Return the details of an event, or their cut English text if they are too long."""
    if detail is None or len(json.dumps(detail.document())) <= _LONGEST_EVENT:
        return detail
    return quoted(_english(detail)[:_LONGEST_QUOTED])


def _event(row: Row[Any]) -> AuditEvent:
    detail = Sentence.read(row.sentence) if row.sentence else None
    return _audit_event(detail, id=row.id, at=row.at, who=row.who, action=row.action, object=row.object)


def _audit_event(detail: Sentence | None, **about: Any) -> AuditEvent:
    if detail is None:
        return AuditEvent(**about, detail="")
    return AuditEvent(**about, detail=_english(detail), code=detail.code, values=detail.values)


def _english(detail: Sentence) -> str:
    try:
        return english(detail)
    except KeyError:  # of another version
        return detail.code
