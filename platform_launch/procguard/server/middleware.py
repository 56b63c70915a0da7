"""What stands before the whole app: limits of size, the headers every answer carries, and heartbeats."""

from __future__ import annotations

import asyncio

from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from platform_launch.procguard.api.refused import RequestRefused
from platform_launch.procguard.api.shapes import Refusal
from platform_launch.procguard.api.wire import MAX_LOG_CHUNK, Heartbeat, WorkerOrders
from platform_launch.procguard.server.answers import answer, fault, invalid
from platform_launch.procguard.server.gate import SESSION_COOKIE, bearer
from platform_launch.procguard.server.parts import ServerParts, known

HEARTBEAT = "/api/v1/agent/heartbeat"
MAX_BODY = 1024 * 1024
STRANGERS_BODY = 16 * 1024
"""Of whoever shows no credential of ours: nobody fills our memory without one."""

_BODIES = {
    HEARTBEAT: 4 * 1024 * 1024,
    "/api/v1/agent/log": MAX_LOG_CHUNK,
    "/api/v1/agent/join": 32 * 1024,
    "/api/v1/login": 16 * 1024,
}

# The page brings all it needs, and holds neither scripts nor styles in its text.
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
# No Strict-Transport-Security: it would hold for every port of the host, a TensorBoard's too.
_HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
_HEARTBEAT_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_NEVER_KEPT = (b"cache-control", b"no-store")
# Of the page's own files: their addresses change with their content.
_KEPT = (b"cache-control", b"public, max-age=31536000, immutable")


class ServerMiddleware:
    """Refuses bodies that are too long before they are read, adds the headers, answers heartbeats.

    ``stopping`` is set when the server ends: streams that would go on for ever are told that nobody listens.
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
        if scope["path"] == HEARTBEAT and scope["method"] == "POST":
            await self._heartbeat(scope, receive, send)
            return
        limit = _BODIES.get(scope["path"], MAX_BODY)
        if limit > STRANGERS_BODY and not self._is_known(scope):
            limit = STRANGERS_BODY
        sending = _with_headers(scope, send)
        if _announced(scope) > limit:
            await _too_large(limit)(scope, receive, sending)
            return
        await self._app(scope, _Body(receive, limit, self._stopping), sending)

    def _is_known(self, scope: Scope) -> bool:
        """Tell whether a request shows a credential of ours, by memory alone: its route looks closer."""
        request = Request(scope)
        token = bearer(request.headers)
        parts = self._parts
        if token is not None and scope["path"].startswith("/api/v1/agent/"):
            return parts.control.who(token) is not None or parts.is_join_token(token)
        if token is None and parts.proxy.names(request.headers):
            return True
        token = token or request.cookies.get(SESSION_COOKIE)
        return token is not None and parts.sessions.is_ours(token)

    async def _heartbeat(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a heartbeat from memory, without the framework: most of all requests are these."""
        token = bearer(Headers(scope=scope))
        node = self._parts.control.who(token) if token else None
        limit = _BODIES[HEARTBEAT]
        try:
            # Whoever is not known has no memory of ours filled.
            body = await _whole(scope, receive, limit) if node else b""
            if body is None:
                return
            response = answer_heartbeat(self._parts, known(node), body)
        except RequestRefused as refused:
            self._parts.meter.refused.inc()
            response = answer(refused)
        except _TooLongError:
            response = _too_large(limit)
        except Exception as error:
            response = await fault(Request(scope), error)
        await response(scope, receive, send if response.status_code == 200 else _with_headers(scope, send))


def answer_heartbeat(parts: ServerParts, node: str, body: bytes) -> Response:
    """Return the answer to a node's heartbeat. Raises RequestRefused."""
    try:
        orders = parts.control.heartbeat(node, Heartbeat.model_validate_json(body))
    except ValidationError as error:
        parts.meter.refused.inc()
        return invalid(error.errors(include_input=False, include_url=False))
    parts.meter.heartbeats.inc()
    if questions := parts.inspections.of(node):
        orders = WorkerOrders(**{**dict(orders), "questions": questions})
    return Response(orders.model_dump_json(), 200, _HEARTBEAT_HEADERS, "application/json")


class _TooLongError(Exception):
    """A body is longer than it may be."""


async def _whole(scope: Scope, receive: Receive, limit: int) -> bytes | None:
    """Return a body, None where its sender left. Raises _TooLongError."""
    if _announced(scope) > limit:
        raise _TooLongError
    body = b""
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message["body"]
        if len(body) > limit:
            raise _TooLongError
        more = message["more_body"]
    return body


def _with_headers(scope: Scope, send: Send) -> Send:
    """Return what sends the headers that every answer carries as well."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message["headers"] = list(message.get("headers", ()))
            has = {name for name, _ in headers}
            is_file = scope["path"].startswith("/static/") and message["status"] in (200, 206, 304)
            kept = _KEPT if is_file else _NEVER_KEPT
            headers += [header for header in (*_HEADERS, kept) if header[0] not in has]
        await send(message)

    return sending


class _Body:
    """Passes a body on until it is too long, and then only tells when the client has left."""

    def __init__(self, receive: Receive, limit: int, stopping: asyncio.Event) -> None:
        self.limit = limit
        self._receive = receive
        self._left = limit
        self._whole = False
        self._stopping = stopping

    async def __call__(self) -> Message:
        if self._whole:
            return await self._until_gone()
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise HTTPException(413, f"the body is longer than {self.limit} bytes", {"Connection": "close"})
        self._whole = not message.get("more_body", False)
        return message

    async def _until_gone(self) -> Message:
        """Wait for the client to leave, or for the server to."""
        message = asyncio.ensure_future(self._receive())
        ending = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((message, ending), return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message.done() else {"type": "http.disconnect"}
        finally:
            message.cancel()
            ending.cancel()


def _too_large(limit: int) -> Response:
    """Return the answer to a body that is too long. The connection ends: the rest of it is not read."""
    refusal = Refusal(error=f"the body is longer than {limit} bytes")
    return Response(refusal.model_dump_json(), 413, {"Connection": "close"}, "application/json")


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < 16 else 2**63
    return 0
