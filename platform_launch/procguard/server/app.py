"""The app: routes, errors, limits and headers; and the routes for monitoring."""

from __future__ import annotations

import asyncio
from functools import partial

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from platform_launch import __version__
from platform_launch.procguard.api.refused import RequestRefused, Unavailable
from platform_launch.procguard.api.shapes import Shape
from platform_launch.procguard.server.answers import add_answers, refusals
from platform_launch.procguard.server.assembly import Parts, ServerParts
from platform_launch.procguard.server.gate import person_of
from platform_launch.procguard.server.middleware import ServerMiddleware
from platform_launch.procguard.server.routes import (
    agents,
    groups,
    history,
    inspect,
    people,
    workers,
)
from platform_launch.procguard.server.sign_in import add_oidc
from platform_launch.procguard.web.pages import Pages, add_pages

router = APIRouter(tags=["health"])


class Health(Shape):
    """The server answers."""

    status: str = "ok"


@router.get("/healthz", operation_id="alive")
async def alive() -> Health:
    """Return 200 as long as the server is alive. Uses neither database nor disk."""
    return Health()


@router.get("/readyz", operation_id="ready", responses=refusals(503))
def ready(parts: Parts) -> Health:
    """Return 200 if the database can be read and the control loop works, else 503 with the reason."""
    parts.accounts.find("")
    if parts.control_loop.trouble:
        raise Unavailable("not-ready", reason=parts.control_loop.trouble)
    return Health()


@router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus' text format."}},
)
def metrics(parts: Parts, request: Request) -> Response:
    """Return counts for Prometheus; with a login also series by group, node and GPU."""
    try:
        named = person_of(parts.sessions, parts.proxy, request) is not None
    except RequestRefused:  # counts need neither a login nor the database
        named = False
    text = parts.meter.text(named=named)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


_ABOUT = """Groups of workers, ranks by rule, started as one.

Every error is a `Refusal`. People log in with `POST /api/v1/login` and send the token as
`Authorization: Bearer …`; browsers send a cookie, and `X-CSRF-Token` with every change. Agents join with the
join token and send their own credential as `Authorization: Bearer …`.
"""


def served_app(parts: ServerParts, stopping: asyncio.Event) -> ASGIApp:
    """Return the app with its limits and headers.

    ``stopping`` must be set in the event loop when the server stops: it ends the endless streams.
    """
    return ServerMiddleware(build_app(parts), parts, stopping)


def build_app(parts: ServerParts) -> FastAPI:
    """Return the app. It starts nothing: the control loop and the database belong to the caller."""
    app = FastAPI(
        title="ProcGuard",
        version=__version__,
        description=_ABOUT,
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # a redirect would lead to whatever the Host header contains
    )
    app.state.parts = parts
    add_answers(app)
    for routes in (agents, groups, inspect, workers, history, people):
        app.include_router(routes.router)
    app.include_router(router)
    pages = Pages(
        parts.control.queries,
        parts.accounts,
        partial(person_of, parts.sessions, parts.proxy),
        parts.history,
        parts.settings.notice_schemes,
        oidc=parts.settings.sign_in.oidc is not None,
    )
    add_pages(app, pages)
    add_oidc(app, parts)
    return app
