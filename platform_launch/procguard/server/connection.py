"""uvicorn's connection, with limits on the length and duration of a request."""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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
