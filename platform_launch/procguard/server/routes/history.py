"""Routes for the audit log and for measurements."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import StreamingResponse

from platform_launch.procguard.api.shapes.history import AuditEvent, Chart, ChartKind, EventFilter, EventQuery
from platform_launch.procguard.control.queries import Queries
from platform_launch.procguard.server.answers import refusals
from platform_launch.procguard.server.assembly import Parts
from platform_launch.procguard.server.gate import Viewer
from platform_launch.sentences import Sentence

router = APIRouter(prefix="/api/v1", tags=["history"])

_BLOCK = 500


@router.get("/events", operation_id="events", responses=refusals(401, 422, 503))
def events(parts: Parts, _person: Viewer, query: Annotated[EventQuery, Query()]) -> list[AuditEvent]:
    """List changes: what, when and by whom, newest first."""
    return parts.control.queries.events(query.before, query.limit, query)


@router.get(
    "/events.csv",
    operation_id="events_csv",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/csv": {}}, "description": "Events."}, **refusals(401, 422, 503)},
)
def events_csv(parts: Parts, _person: Viewer, chosen: Annotated[EventFilter, Query()]) -> StreamingResponse:
    """Download the selected events as CSV, newest first."""
    return StreamingResponse(
        csv_lines(parts.control.queries, chosen),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="procguard-events.csv"'},
    )


def csv_lines(queries: Queries, chosen: EventFilter) -> Iterator[str]:
    """Yield a table of events, a block at a time. No cell begins like a spreadsheet's formula."""
    yield _row(("id", "at", "who", "action", "on", "detail", "code", "values"))
    before: int | None = None
    while block := queries.events(before, _BLOCK, chosen):
        yield "".join(_row(_cells(one)) for one in block)
        before = block[-1].id


def _cells(event: AuditEvent) -> Sequence[object]:
    document = Sentence(event.code, event.values).document()["values"]
    values = json.dumps(document, ensure_ascii=False) if document else ""
    detail = (event.detail, event.code, values)
    return event.id, event.at.isoformat(), event.who, event.action, event.object, *detail


def _row(cells: Sequence[object]) -> str:
    line = io.StringIO()
    texts = [str(cell) for cell in cells]
    csv.writer(line).writerow([f"'{text}" if text[:1] in "=+-@\t\r" and text else text for text in texts])
    return line.getvalue()


_READ = refusals(401, 404, 422, 503)


@router.get("/charts/groups/{name}/ranks", operation_id="chart_ranks", responses=_READ)
def ranks(
    name: str, parts: Parts, _person: Viewer, series: Literal["gpu", "gpu_memory", "steps"] = "gpu"
) -> Chart:
    """Return one series of each rank of a group over the last hour; if there are many, the lowest 32."""
    parts.control.queries.group(name)
    return parts.history.ranks(name, series)


@router.get("/charts/{kind}/{name}", operation_id="chart", responses=_READ)
def chart(
    kind: ChartKind,
    name: str,
    parts: Parts,
    _person: Viewer,
    span: Annotated[
        Literal["hour", "days"],
        Query(description="`days`: only for groups and nodes, at a lower resolution."),
    ] = "hour",
) -> Chart:
    """Return the series of a worker, node or group."""
    look = {
        ChartKind.WORKER: parts.control.queries.worker,
        ChartKind.NODE: parts.control.queries.node,
        ChartKind.GROUP: parts.control.queries.group,
    }
    look[kind](name)  # raises NotFound
    return parts.history.chart(kind, name, days=span == "days")
