"""Server-sent events: "something changed", at most once a second; the page then refreshes what it shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

if TYPE_CHECKING:
    from platform_launch.procguard.control.queries import Queries

REFRESH_S = 1.0
ALIVE_S = 5.0
"""A page without an event for three times as long considers the server offline."""
ADMIT_EVERY_S = 15.0
"""Interval for checking that the reader is still logged in."""
LIFETIME_S = 600.0
"""The page reconnects after this long."""


class Stream(Response):
    """An endless answer, until its reader leaves or the server stops."""

    def __init__(self, queries: Queries, admitted: Callable[[], Awaitable[bool]]) -> None:
        # The second header prevents a proxy from buffering events.
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._queries = queries
        self._admitted = admitted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Send events."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        closed = asyncio.ensure_future(_disconnected(receive))
        try:
            async for event in changes(self._queries, self._admitted, closed):
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        finally:
            closed.cancel()
        await send({"type": "http.response.body", "body": b""})


async def changes(
    queries: Queries, admitted: Callable[[], Awaitable[bool]], closed: asyncio.Future[None]
) -> AsyncIterator[str]:
    """Yield an event for each visible change, and a sign of life in between."""
    loop = asyncio.get_running_loop()
    end, admit_at = loop.time() + LIFETIME_S, loop.time() + ADMIT_EVERY_S
    version, sent_at = queries.version, loop.time()
    yield f"event: alive\ndata: {version}\n\n"
    while loop.time() < end:
        await asyncio.wait((closed,), timeout=REFRESH_S)
        if closed.done():
            return
        if loop.time() >= admit_at:
            admit_at = loop.time() + ADMIT_EVERY_S
            if not await admitted():
                return
        if queries.version != version:
            version, sent_at = queries.version, loop.time()
            yield f"event: changed\ndata: {version}\n\n"
        elif loop.time() - sent_at >= ALIVE_S:
            sent_at = loop.time()
            yield f"event: alive\ndata: {version}\n\n"


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
