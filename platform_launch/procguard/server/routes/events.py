"""The audit log: what was changed, when and by whom."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import StreamingResponse

from platform_launch.procguard.api.shapes.events import AuditEvent, EventFilter
from platform_launch.procguard.core.queries import Queries
from platform_launch.procguard.server.answers import refusals
from platform_launch.procguard.server.gate import Viewer
from platform_launch.procguard.server.parts import Parts
from platform_launch.sentences import Sentence

router = APIRouter(prefix="/api/v1", tags=["events"])

_BLOCK = 500
On = Annotated[str, Query(max_length=140, description="Only of this group, node or user.")]
Who = Annotated[str, Query(max_length=64, description="Only by this user, or `server`.")]
Action = Annotated[str, Query(max_length=32, description="Only of this kind, such as `failed`.")]


@router.get("/events", operation_id="events", responses=refusals(401, 422, 503))
def events(
    parts: Parts,
    _person: Viewer,
    before: Annotated[int | None, Query(ge=0, lt=2**53, description="Only events with a lower id.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    on: On = "",
    who: Who = "",
    action: Action = "",
) -> list[AuditEvent]:
    """List what was changed, when and by whom, newest first."""
    return parts.control.queries.events(before, limit, EventFilter(on=on, who=who, action=action))


@router.get(
    "/events.csv",
    operation_id="events_csv",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/csv": {}}, "description": "Events."}, **refusals(401, 422, 503)},
)
def events_csv(
    parts: Parts, _person: Viewer, on: On = "", who: Who = "", action: Action = ""
) -> StreamingResponse:
    """Download the events that are chosen, newest first, as CSV."""
    chosen = EventFilter(on=on, who=who, action=action)
    return StreamingResponse(
        csv_lines(parts.control.queries, chosen),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="procguard-events.csv"'},
    )


def csv_lines(queries: Queries, chosen: EventFilter) -> Iterator[str]:
    """Yield a table of events, a block at a time. A cell never begins as a spreadsheet's formula does."""
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
