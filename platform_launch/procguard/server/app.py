"""The app: routes, errors, limits and headers."""

from __future__ import annotations

import asyncio
from functools import partial

from fastapi import FastAPI
from starlette.types import ASGIApp

from platform_launch import __version__
from platform_launch.procguard.server.answers import add_answers
from platform_launch.procguard.server.assembly import ServerParts
from platform_launch.procguard.server.gate import person_of
from platform_launch.procguard.server.middleware import ServerMiddleware
from platform_launch.procguard.server.oidc import add_oidc
from platform_launch.procguard.server.routes import (
    agents,
    groups,
    health,
    history,
    inspect,
    people,
    workers,
)
from platform_launch.procguard.web.pages import add_pages

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
    for routes in (agents, groups, inspect, workers, history, people, health):
        app.include_router(routes.router)
    add_pages(
        app,
        parts.control.queries,
        parts.accounts,
        partial(person_of, parts.sessions, parts.proxy),
        parts.history,
        parts.settings.notice_schemes,
        oidc=parts.settings.sign_in.oidc is not None,
    )
    add_oidc(app, parts)
    return app
