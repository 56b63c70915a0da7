"""Who may do what: the dependencies every route of people stands behind.

``Viewer`` and ``Operator`` are what a route takes. Both ask, for everything but reading, that a cookie comes
with the X-CSRF-Token of its session and from a page of this server; a Bearer token needs neither, since no
foreign page can send one.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyCookie, APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers
from starlette.responses import Response

from platform_launch.procguard.api.refused import RequestRefused
from platform_launch.procguard.api.shapes.people import Person
from platform_launch.procguard.database.users import User
from platform_launch.procguard.server.sessions import TOKEN_PREFIX, Sessions

if TYPE_CHECKING:
    from platform_launch.procguard.server.sign_in import ProxySignIn

SESSION_COOKIE = "procguard_session"
CSRF_COOKIE = "procguard_csrf"
CSRF_HEADER = "X-CSRF-Token"
_READING = ("GET", "HEAD", "OPTIONS")

_cookie = APIKeyCookie(name=SESSION_COOKIE, scheme_name="session cookie", auto_error=False)
_csrf = APIKeyHeader(name=CSRF_HEADER, scheme_name="CSRF token", auto_error=False)
_bearer = HTTPBearer(
    scheme_name="session token", description="The `token` of POST /api/v1/login.", auto_error=False
)


class Unauthorized(RequestRefused):
    """Nobody is logged in, or a credential is not known."""

    status = 401


class Forbidden(RequestRefused):
    """Somebody is, but may not do this."""

    status = 403


def person_of(sessions: Sessions, proxy: ProxySignIn, request: Request) -> Person | None:
    """Return who sent a request; None if nobody is logged in. Reads the database.

    Raises Forbidden if a trusted proxy names somebody who may not log in.
    """
    token = bearer(request.headers)
    if token is None and (account := proxy.user(request.headers)) is not None:
        return sessions.of_proxy(account)
    if token is None:
        token = request.cookies.get(SESSION_COOKIE)
        if token and token.startswith(TOKEN_PREFIX):
            return None  # an API token is no session: no browser sends it by itself
    return sessions.who(token) if token else None


def begin_session(
    sessions: Sessions, account: User, request: Request, response: Response
) -> tuple[str, datetime]:
    """Begin a session; return its token, which a browser keeps in a cookie, and when it ends.

    The CSRF token's cookie is for the page's own scripts to read.
    """
    token, session, expires_at = sessions.begin(account)
    for name, value, hidden in (
        (SESSION_COOKIE, token, True),
        (CSRF_COOKIE, sessions.csrf(session), False),
    ):
        response.set_cookie(
            name,
            value,
            max_age=sessions.lasts_s,
            httponly=hidden,
            secure=request.url.scheme == "https",
            samesite="lax",
        )
    return token, expires_at


def address_of(request: Request) -> str:
    """Return where a request came from, empty where that is not known."""
    return request.client.host if request.client else ""


def bearer(headers: Headers) -> str | None:
    """Return the token in the Authorization header."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def from_own_page(request: Request) -> None:
    """Raise Forbidden when a browser says that another site's page sent this. Scripts say nothing."""
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site", "none")
    if origin is None and site in ("none", "same-origin"):
        return
    host = _host(origin or "")
    if not host or host != request.headers.get("Host"):
        raise Forbidden(
            f"sent by a page of {(origin or 'another site')[:200]!r}",
            "only this server's own pages may; a proxy before it must pass the Host header on",
            code="foreign-page",
            origin=(origin or "?")[:200],
        )


def _host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # "http://[x"
        return ""


def _viewer(
    request: Request,
    _token: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
    _session: Annotated[str | None, Security(_cookie)],
    _page: Annotated[str | None, Security(_csrf)],
) -> Person:
    """Return who sent a request. Raises Unauthorized, or Forbidden for a change no page may ask.

    The other parameters only tell the OpenAPI document how to log in.
    """
    parts = request.app.state.parts
    person = person_of(parts.sessions, parts.proxy, request)
    if person is None:
        raise Unauthorized(
            "not logged in", "POST /api/v1/login, or `procguard ctl login`", code="not-logged-in"
        )
    if request.method not in _READING and not bearer(request.headers):
        from_own_page(request)
        sent = request.headers.get(CSRF_HEADER, "")
        if not hmac.compare_digest(sent.encode(), person.csrf.encode()):
            raise Forbidden(
                f"the header {CSRF_HEADER} is missing or is not this session's",
                f"send the value of the cookie {CSRF_COOKIE}, or use a Bearer token",
            )
    return person


Viewer = Annotated[Person, Depends(_viewer)]
"""Whoever is logged in."""


def _only(who: str, may: Callable[[Person], bool], but: str, code: str) -> Any:
    async def check(person: Viewer) -> Person:
        if not may(person):
            hint = f"an {who} may: procguard user list"
            raise Forbidden(f"{person.name} {but}", hint, code=code, user=person.name)
        return person

    return Depends(check)


Operator = Annotated[
    Person,
    _only("operator", lambda person: person.operator, "may look, not change", code="only-operators"),
]
"""Who may change things."""

Admin = Annotated[
    Person, _only("admin", lambda person: person.admin, "may not say who logs in", code="only-admins")
]
"""Who may say who else logs in."""


def check_owner(person: Person, group: str, owners: Sequence[str]) -> None:
    """Raise Forbidden where a group is limited to some users, and this is none of them."""
    if owners and not person.admin and person.name not in owners:
        names = ", ".join(owners)
        raise Forbidden(
            f"{group} is limited to {names}",
            "one of them may, or an admin",
            code="only-owners",
            group=group,
            owners=names,
        )
