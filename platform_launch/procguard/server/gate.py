"""Authorization: the dependencies of every route for people.

Routes take ``Viewer``, ``Operator`` or ``Admin``. Except for reading, a cookie must come with the
X-CSRF-Token of its session, from a page of this server; a Bearer token needs neither, because no foreign page
can send one.
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
    """Nobody is logged in, or a credential is unknown."""

    status = 401


class Forbidden(RequestRefused):
    """The user may not do this."""

    status = 403


def person_of(sessions: Sessions, proxy: ProxySignIn, request: Request) -> Person | None:
    """Return the user of a request; None if nobody is logged in. Reads the database.

    Raises Forbidden if a trusted proxy names somebody who may not log in.
    """
    token = bearer(request.headers)
    if token is None and (account := proxy.user(request.headers)) is not None:
        return sessions.of_proxy(account)
    if token is None:
        token = request.cookies.get(SESSION_COOKIE)
        if token and token.startswith(TOKEN_PREFIX):
            return None  # an API token is not a session: no browser sends it by itself
    return sessions.who(token) if token else None


def begin_session(
    sessions: Sessions, account: User, request: Request, response: Response
) -> tuple[str, datetime]:
    """Begin a session; return its token, which a browser keeps in a cookie, and when it expires.

    The page's own scripts read the cookie of the CSRF token.
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
    """Return the address a request came from, empty if unknown."""
    return request.client.host if request.client else ""


def bearer(headers: Headers) -> str | None:
    """Return the token in the Authorization header."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def from_own_page(request: Request) -> None:
    """Raise Forbidden if a browser reports that another site's page sent this. Scripts report nothing."""
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site", "none")
    if origin is None and site in ("none", "same-origin"):
        return
    host = _host(origin or "")
    if not host or host != request.headers.get("Host"):
        raise Forbidden("foreign-page", origin=(origin or "?")[:200])


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
    """Return the user of a request. Raises Unauthorized, or Forbidden for a change without CSRF protection.

    The other parameters only describe the login in the OpenAPI document.
    """
    parts = request.app.state.parts
    person = person_of(parts.sessions, parts.proxy, request)
    if person is None:
        raise Unauthorized("not-logged-in")
    if request.method not in _READING and not bearer(request.headers):
        from_own_page(request)
        sent = request.headers.get(CSRF_HEADER, "")
        if not hmac.compare_digest(sent.encode(), person.csrf.encode()):
            raise Forbidden("csrf", header=CSRF_HEADER, cookie=CSRF_COOKIE)
    return person


Viewer = Annotated[Person, Depends(_viewer)]
"""Any user who is logged in."""


def _only(may: Callable[[Person], bool], code: str) -> Any:
    async def check(person: Viewer) -> Person:
        if not may(person):
            raise Forbidden(code, user=person.name)
        return person

    return Depends(check)


Operator = Annotated[Person, _only(lambda person: person.operator, "only-operators")]
"""A user who may change things."""

Admin = Annotated[Person, _only(lambda person: person.admin, "only-admins")]
"""A user who may manage users."""


def check_owner(person: Person, group: str, owners: Sequence[str]) -> None:
    """Raise Forbidden if a group has owners and this user is not one of them."""
    if owners and not person.admin and person.name not in owners:
        raise Forbidden("only-owners", group=group, owners=list(owners))
