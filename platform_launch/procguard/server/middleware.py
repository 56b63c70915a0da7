"""Applied to every request: limits on its length and duration, and the headers of every answer."""

from __future__ import annotations

import asyncio
from typing import cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from platform_launch.procguard.api.refused import RequestRefused
from platform_launch.procguard.api.wire import MAX_LOG_CHUNK
from platform_launch.procguard.server.answers import fault
from platform_launch.procguard.server.assembly import ServerParts
from platform_launch.procguard.server.gate import SESSION_COOKIE, bearer
from platform_launch.procguard.server.routes.agents import heartbeat

MAX_HEAD = 64 * 1024
HEAD_WITHIN_S = 20.0
BODY_WITHIN_S = 60.0


class HttpConnection(HttpToolsProtocol):
    """Closes the connection if a request's head is too long, or if head or body are too slow."""

    _in_head = False
    _head_bytes = 0
    _within_s: float | None = HEAD_WITHIN_S
    _steps = _timed = 0
    """Started and ended heads and bodies, and how many of them the timer has seen."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._within_s = None
        self._set_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Start a request."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._await(HEAD_WITHIN_S)

    def on_headers_complete(self) -> None:
        """Pass the request on."""
        self._in_head = False
        self._await(BODY_WITHIN_S)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request; its answer may take longer."""
        self._await(None)
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """Read more. A request that arrives in one piece, such as a heartbeat, needs no timer."""
        super().data_received(data)
        if self._timed != self._steps:
            self._set_timer()
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self.send_400_response("The head of the request is too long.")

    def _await(self, within_s: float | None) -> None:
        self._within_s = within_s
        self._steps += 1

    def _set_timer(self) -> None:
        self._timed = self._steps
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._within_s is not None:
            self._timer = self.loop.call_later(self._within_s, self._too_late)

    def _too_late(self) -> None:
        self._timer = None
        self.transport.close()


MAX_BODY = 1024 * 1024
STRANGERS_BODY = 16 * 1024
"""For requests without a valid credential: nobody fills the memory without one."""

HEARTBEAT = "/api/v1/agent/heartbeat"
_BODIES = {
    HEARTBEAT: 4 * 1024 * 1024,
    "/api/v1/agent/log": MAX_LOG_CHUNK,
    "/api/v1/agent/join": 32 * 1024,
    "/api/v1/login": 16 * 1024,
}

# The page loads nothing from elsewhere, and has no inline scripts or styles.
CONTENT_SECURITY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
# No Strict-Transport-Security: it would apply to every port of the host, such as TensorBoard's.
_HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
_NOT_CACHED = (b"cache-control", b"no-store")
# For the page's own files: their URLs change with their content.
_CACHED = (b"cache-control", b"public, max-age=31536000, immutable")


class ServerMiddleware:
    """Refuses long bodies before they are read, and adds the headers.

    ``stopping`` is set when the server stops: endless streams then see a disconnected client.
    """

    def __init__(self, app: ASGIApp, parts: ServerParts, stopping: asyncio.Event) -> None:
        self._app = app
        self._parts = parts
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        beats = scope["path"] == HEARTBEAT and scope["method"] == "POST"
        limit = _BODIES.get(scope["path"], MAX_BODY)
        # A heartbeat's credential is checked before its body is read.
        if not beats and limit > STRANGERS_BODY and not self._is_known(scope):
            limit = STRANGERS_BODY
        sending = _with_headers(scope, send)
        if _announced(scope) > limit:
            await _too_large(limit)(scope, receive, sending)
            return
        # Most requests are heartbeats. FastAPI's layers would cost as much as the rest.
        app = self._heartbeat if beats else self._app
        await app(scope, _Body(receive, limit, self._stopping), sending)

    async def _heartbeat(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await heartbeat(request, self._parts)
        except HTTPException:  # from _Body
            response = _too_large(_BODIES[HEARTBEAT])
        except Exception as error:
            response = await fault(request, error)
        await response(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        """Return whether a request has a valid credential, from memory alone: its route checks further."""
        request = Request(scope)
        token = bearer(request.headers)
        parts = self._parts
        if token is not None and scope["path"].startswith("/api/v1/agent/"):
            return parts.control.who(token) is not None or parts.is_join_token(token)
        if token is None and parts.proxy.names(request.headers):
            return True
        token = token or request.cookies.get(SESSION_COOKIE)
        return token is not None and parts.sessions.is_ours(token)


def _with_headers(scope: Scope, send: Send) -> Send:
    """Return a function that adds the common headers."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message["headers"] = list(message.get("headers", ()))
            has = {name for name, _ in headers}
            is_file = scope["path"].startswith("/static/") and message["status"] in (200, 206, 304)
            caching = _CACHED if is_file else _NOT_CACHED
            headers += [header for header in (*_HEADERS, caching) if header[0] not in has]
        await send(message)

    return sending


class _Body:
    """Passes a body on until it is too long, and afterwards only reports a disconnect."""

    def __init__(self, receive: Receive, limit: int, stopping: asyncio.Event) -> None:
        self.limit = limit
        self._receive = receive
        self._bytes_left = limit
        self._whole = False
        self._stopping = stopping

    async def __call__(self) -> Message:
        if self._whole:
            return await self._until_closed()
        message = await self._receive()
        self._bytes_left -= len(message.get("body", b""))
        if self._bytes_left < 0:
            raise HTTPException(413, f"the body is longer than {self.limit} bytes", {"Connection": "close"})
        self._whole = not message.get("more_body", False)
        return message

    async def _until_closed(self) -> Message:
        """Wait for the client to disconnect, or for the server to stop."""
        message = asyncio.ensure_future(self._receive())
        ending = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((message, ending), return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message.done() else {"type": "http.disconnect"}
        finally:
            message.cancel()
            ending.cancel()


def _too_large(limit: int) -> Response:
    """Return the answer to a body that is too long. The rest is not read, so the connection is closed."""
    refusal = RequestRefused("too-large", limit=str(limit)).refusal
    return Response(refusal.model_dump_json(), 413, {"Connection": "close"}, "application/json")


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < 16 else 2**63
    return 0
