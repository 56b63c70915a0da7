"""Logging in and out, and what was changed by whom."""

from __future__ import annotations

from typing import Annotated

import anyio
from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response

from platform_launch.procguard.database.users import User
from platform_launch.procguard.server.answers import refusals
from platform_launch.procguard.server.gate import (
    CSRF_COOKIE,
    SESSION_COOKIE,
    Unauthorized,
    Viewer,
    from_own_page,
)
from platform_launch.procguard.server.parts import Here, Parts
from platform_launch.procguard.server.passwords import is_password
from platform_launch.procguard.server.throttle import TooMany
from platform_launch.procguard.shapes import Event, Login, Me, Session

router = APIRouter(prefix="/api/v1", tags=["people"])

# A check of a password takes tens of MiB and milliseconds: few at a time, the rest waits outside threads.
_CHECKS = anyio.CapacityLimiter(2)


@router.post("/login", operation_id="login", responses=refusals(400, 401, 403, 413, 422, 429, 503))
async def login(who: Login, request: Request, response: Response, here: Here) -> Session:
    """Log in. Answers a token for scripts, and the same as a cookie for browsers."""
    from_own_page(request)
    try:
        here.throttle.count(request.client.host if request.client else "", who.name)
    except TooMany:
        here.meter.logins.labels("throttled").inc()
        raise
    account = await to_thread.run_sync(_account, here, who, limiter=_CHECKS)
    here.meter.logins.labels("failed" if account is None else "succeeded").inc()
    if account is None:
        raise Unauthorized("the name or the password is wrong", "procguard user passwd NAME sets a new one")
    token, session, expires_at = here.gate.sessions.begin(account)
    here.gate.give_cookies(request, response, token, session)
    return Session(token=token, name=account.name, role=account.role, expires_at=expires_at)


def _account(here: Parts, who: Login) -> User | None:
    account = here.accounts.find(who.name)
    kept = account.password_hash if account else None
    return account if is_password(kept, who.password) else None


@router.post("/logout", operation_id="logout", status_code=204, responses=refusals(401, 403, 503))
def logout(here: Here, person: Viewer, response: Response) -> None:
    """End this session: its token is worth nothing from now on."""
    here.gate.sessions.end(person)
    for name in (SESSION_COOKIE, CSRF_COOKIE):
        response.delete_cookie(name)


@router.get("/me", operation_id="me", responses=refusals(401, 503))
def me(person: Viewer) -> Me:
    """Say who is logged in."""
    return Me(name=person.name, role=person.role)


@router.get("/events", operation_id="events", responses=refusals(401, 422, 503))
def events(
    here: Here,
    _person: Viewer,
    before: Annotated[int | None, Query(ge=0, lt=2**53, description="Only events with a lower id.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> list[Event]:
    """List what was changed, when and by whom, newest first."""
    return here.control.events(before, limit)
