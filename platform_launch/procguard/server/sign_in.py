"""Sign-in without a password: through OpenID Connect, or through headers of a trusted proxy.

The provider sets a user's name and, by the user's groups, the role. A user is identified by the provider's
subject, so somebody who gets the same name there later is not the same user here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence

from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from platform_launch.errors import shown
from platform_launch.procguard.api.shapes.people import UserName
from platform_launch.procguard.database.users import User, Users
from platform_launch.procguard.server.gate import Forbidden
from platform_launch.procguard.server.settings import ProxyHeaders, SignInSettings

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
