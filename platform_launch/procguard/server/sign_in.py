"""Sign-in without a password: through OpenID Connect, or through headers of a trusted proxy.

The provider sets a user's name and, by the user's groups, the role. A user is identified by the provider's
subject, so somebody who gets the same name there later is not the same user here.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fastapi import FastAPI
from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from platform_launch.errors import InstallationError, shown
from platform_launch.extras import install_extra
from platform_launch.procguard.api.refused import RequestRefused
from platform_launch.procguard.api.shapes.people import UserName
from platform_launch.procguard.database.users import User, Users
from platform_launch.procguard.server.gate import Forbidden, begin_session
from platform_launch.procguard.server.settings import OidcSettings, ProxyHeaders, SignInSettings, read_secret
from platform_launch.procguard.web.page_request import own_path

if TYPE_CHECKING:
    from platform_launch.procguard.server.assembly import ServerParts

_LOG = logging.getLogger(__name__)
_MINUTES = 10
"""Time limit for logging in at the provider."""


def add_oidc(app: FastAPI, parts: ServerParts) -> None:
    """Add sign-in through OpenID Connect to the server's application, if it is configured.

    Raises InstallationError, InputError.
    """
    settings = parts.settings.sign_in.oidc
    if settings is None:
        return
    routes = _OidcRoutes(settings, parts)
    session = Middleware(
        SessionMiddleware,
        secret_key=parts.sessions.secret("oidc"),
        session_cookie="procguard_oidc",
        max_age=60 * _MINUTES,
        path="/oidc",
        https_only=parts.settings.page_url.startswith("https:"),
    )
    found = [Route("/login", routes.login), Route("/callback", routes.callback)]
    app.mount("/oidc", Starlette(routes=found, middleware=[session]))


class _OidcRoutes:
    """Redirects to the provider, and back with a code that only this server can exchange for claims."""

    def __init__(self, settings: OidcSettings, parts: ServerParts) -> None:
        try:
            from authlib.integrations.starlette_client import OAuth
        except ImportError as error:
            raise InstallationError(
                "sign_in.oidc needs the package authlib, which is not installed", install_extra("sso")
            ) from error
        file = settings.client_secret_file
        self._settings = settings
        self._parts = parts
        self._client = OAuth().register(
            "oidc",
            client_id=settings.client_id,
            client_secret=read_secret(file, f"sign_in.oidc.client_secret_file={file}"),
            server_metadata_url=f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration",
            client_kwargs={"scope": settings.scope, "code_challenge_method": "S256", "timeout": 10.0},
        )

    async def login(self, request: Request) -> Response:
        """Redirect to the provider."""
        request.session.clear()
        request.session["next"] = own_path(request.query_params.get("next", "/"))
        page = self._parts.settings.page_url.rstrip("/") or str(request.base_url).rstrip("/")
        page = page.removesuffix("/oidc")
        try:
            answer: Response = await self._client.authorize_redirect(request, f"{page}/oidc/callback")
        except Exception as error:  # from Authlib's HTTP client, or because of the provider's metadata
            return _to_login("sign-in-unreachable", error)
        return answer

    async def callback(self, request: Request) -> Response:
        """Begin a session for a user who returns from the provider."""
        place = own_path(str(request.session.get("next", "/")))
        try:
            claims = await self._claims(request)
            account = await run_in_threadpool(self._admitted, claims)
        except RequestRefused as refused:
            self._parts.meter.logins.labels("failed").inc()
            return _to_login(refused.refusal.code, refused)
        except Exception as error:  # whatever a provider answers, or a browser makes up
            self._parts.meter.logins.labels("failed").inc()
            return _to_login("sign-in-failed", error)
        request.session.clear()
        self._parts.meter.logins.labels("succeeded").inc()
        response = RedirectResponse(place, 303)
        begin_session(self._parts.sessions, account, request, response)
        return response

    async def _claims(self, request: Request) -> dict[str, Any]:
        """Return the claims of the ID token; its signature, issuer, audience and nonce are checked."""
        expected = {"iss": self._settings.issuer, "aud": self._settings.client_id}
        token = await self._client.authorize_access_token(
            request,
            claims_options={name: {"essential": True, "value": value} for name, value in expected.items()},
        )
        claims: dict[str, Any] = {**token["userinfo"]}
        missing = {self._settings.name_claim, self._settings.groups_claim} - claims.keys()
        if missing and "userinfo_endpoint" in await self._client.load_server_metadata():
            more = await self._client.userinfo(token=token)
            if more.get("sub") == claims["sub"]:
                claims = {**more, **claims}
        return claims

    def _admitted(self, claims: dict[str, Any]) -> User:
        settings = self._settings
        groups = claims.get(settings.groups_claim, ())
        names = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else ()
        if settings.name_claim == "email" and claims.get("email_verified") is False:
            raise Forbidden("sign-in-email")
        subject = f"{settings.issuer} {claims['sub']}"
        return admitted(
            self._parts.settings.sign_in,
            self._parts.accounts,
            claims.get(settings.name_claim),
            {str(name) for name in names},
            subject,
        )


def _to_login(code: str, reason: Exception) -> Response:
    _LOG.warning("sign-in through OpenID Connect: %s: %s", type(reason).__name__, shown(str(reason), 400))
    return RedirectResponse(f"/login?problem={quote(code)}", 303)


_NAME: TypeAdapter[str] = TypeAdapter(UserName)


def admitted(
    settings: SignInSettings, accounts: Users, name: object, groups: Collection[str], subject: str
) -> User:
    """Return the user of a name, with the role of its groups. Raises RequestRefused, Unavailable."""
    try:
        known = _NAME.validate_python(name)
    except ValidationError as error:
        raise Forbidden("sign-in-name", name=shown(str(name))) from error
    role = settings.role(groups)
    if role is None:
        raise Forbidden("sign-in-no-role", user=known)
    return accounts.by("sign-in").sign_in(known, role, subject)


class ProxySignIn:
    """Reads the user of a request from a trusted proxy's headers; :class:`OnlyFromProxies` protects them."""

    def __init__(self, settings: SignInSettings, accounts: Users) -> None:
        self._settings = settings
        self._headers = settings.proxy
        self._accounts = accounts

    def names(self, headers: Headers) -> bool:
        """Return whether a proxy names a user."""
        return self._headers is not None and self._headers.name_header in headers

    def user(self, headers: Headers) -> User | None:
        """Return the user that a proxy names, None if there is none. Raises RequestRefused, Unavailable."""
        if self._headers is None or not self.names(headers):
            return None
        names = headers.getlist(self._headers.name_header)
        groups = ",".join(headers.getlist(self._headers.groups_header)).split(",")
        # With two names, one may be the client's: some proxies append their own.
        name = names[0] if len(names) == 1 else ",".join(names)
        return admitted(self._settings, self._accounts, name, {one.strip() for one in groups}, "proxy")


class OnlyFromProxies:
    """Removes the user headers from requests that do not come from a trusted proxy."""

    def __init__(self, app: ASGIApp, headers: ProxyHeaders, proxies: Sequence[str]) -> None:
        self._app = app
        self._names = {name.lower().encode() for name in (headers.name_header, headers.groups_header)}
        self._proxies = [ipaddress.ip_network(proxy) for proxy in proxies]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http" and not self._trusted(scope):
            kept = [header for header in scope["headers"] if header[0] not in self._names]
            scope = {**scope, "headers": kept}
        await self._app(scope, receive, send)

    def _trusted(self, scope: Scope) -> bool:
        client = scope.get("client")
        try:
            address = ipaddress.ip_address(client[0] if client else "")
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._proxies)
