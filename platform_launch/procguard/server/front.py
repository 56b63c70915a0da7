"""What stands before the whole app: limits of size, and the headers every answer carries."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from platform_launch.procguard.shapes import Refusal
from platform_launch.procguard.wire import MAX_LOG_CHUNK

MAX_BODY = 1024 * 1024
MAX_BEAT = 4 * 1024 * 1024
LARGER_BODIES = {"/api/v1/agent/heartbeat": MAX_BEAT}
SMALLER_BODIES = {"/api/v1/agent/log": MAX_LOG_CHUNK, "/api/v1/login": 16 * 1024, "/login": 16 * 1024}
_BODIES = LARGER_BODIES | SMALLER_BODIES

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
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Front:
    """Refuses bodies that are too long before they are read, and adds the headers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
                if scope["scheme"] == "https":
                    headers.setdefault("Strict-Transport-Security", "max-age=31536000")
            await send(message)

        limit = _BODIES.get(scope["path"], MAX_BODY)
        if _announced(scope) > limit:
            await too_large(limit)(scope, receive, send_with_headers)
        else:
            await self.app(scope, _Limited(receive, limit), send_with_headers)


class _Limited:
    """Passes a body on that comes without its length, until it is too long."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._left = limit

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise HTTPException(413, f"the body is longer than {self._limit} bytes")
        return message


def too_large(limit: int) -> Response:
    """Return the answer to a body that is too long. The connection ends: the rest of it is not read."""
    refusal = Refusal(error=f"the body is longer than {limit} bytes")
    return Response(refusal.model_dump_json(), 413, {"Connection": "close"}, "application/json")


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < 16 else 2**63
    return 0
