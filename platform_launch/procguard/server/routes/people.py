"""Logging in and out, and what was changed by whom."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from platform_launch.procguard.api.refused import Unavailable
from platform_launch.procguard.api.shapes.events import AuditEvent, EventFilter
from platform_launch.procguard.api.shapes.people import Login, Me, Session
from platform_launch.procguard.core.queries import Queries
from platform_launch.procguard.database.users import User
from platform_launch.procguard.server.answers import refusals
from platform_launch.procguard.server.gate import (
    CSRF_COOKIE,
    SESSION_COOKIE,
    Unauthorized,
    Viewer,
    from_own_page,
)
from platform_launch.procguard.server.parts import Parts, ServerParts
from platform_launch.procguard.server.passwords import CHECKS, is_password
from platform_launch.procguard.server.throttle import TooMany
from platform_launch.sentences import Sentence, sentence

router = APIRouter(prefix="/api/v1", tags=["people"])

_BLOCK = 500
On = Annotated[str, Query(max_length=140, description="Only of this group, node or user.")]
Who = Annotated[str, Query(max_length=64, description="Only by this user, or `server`.")]
Action = Annotated[str, Query(max_length=32, description="Only of this kind, such as `failed`.")]


@router.post("/login", operation_id="login", responses=refusals(400, 401, 403, 413, 422, 429, 503))
async def login(who: Login, request: Request, response: Response, parts: Parts) -> Session:
    """Log in. Answers a token for scripts, and the same as a cookie for browsers."""
    from_own_page(request)
    try:
        parts.throttle.count(request.client.host if request.client else "", who.name)
    except TooMany:
        parts.meter.logins.labels("throttled").inc()
        raise
    account = await to_thread.run_sync(_account, parts, who, limiter=CHECKS)
    parts.meter.logins.labels("failed" if account is None else "succeeded").inc()
    if account is None:
        raise Unauthorized(
            "the name or the password is wrong",
            "procguard user passwd NAME sets a new one",
            code="wrong-password",
        )
    with suppress(Unavailable):  # who may log in may, also while nothing can be written down
        await to_thread.run_sync(parts.control.record, account.name, "login", account.name, _address(request))
    parts.throttle.succeeded(request.client.host if request.client else "", account.name)
    token, session, expires_at = parts.gate.sessions.begin(account)
    parts.gate.give_cookies(request, response, token, session)
    return Session(token=token, name=account.name, role=account.role, expires_at=expires_at)


def _address(request: Request) -> Sentence:
    return sentence(
        "from-address", address=request.client.host if request.client else sentence("unknown-address")
    )


def _account(parts: ServerParts, who: Login) -> User | None:
    account = parts.accounts.find(who.name)
    kept = account.password_hash if account else None
    return account if is_password(kept, who.password) else None


@router.post("/logout", operation_id="logout", status_code=204, responses=refusals(401, 403, 503))
def logout(parts: Parts, person: Viewer, response: Response) -> None:
    """End this session: its token is worth nothing from now on."""
    parts.gate.sessions.end(person)
    for name in (SESSION_COOKIE, CSRF_COOKIE):
        response.delete_cookie(name)


@router.get("/me", operation_id="me", responses=refusals(401, 503))
def me(person: Viewer) -> Me:
    """Say who is logged in."""
    return Me(name=person.name, role=person.role)


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
