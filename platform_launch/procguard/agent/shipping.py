"""The thread that sends the output of runs as it grows, at a limited rate, from where the server has it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from platform_launch.procguard.agent import records
from platform_launch.procguard.agent.connection import AgentConnection, RequestError
from platform_launch.procguard.agent.heartbeats import Exchange
from platform_launch.procguard.agent.state import RunFolder
from platform_launch.procguard.api.wire import MAX_LOG_CHUNK, WorkerOrder

_LOOK_S = 0.3
_RATE_BYTES_S = 4 * 1024 * 1024
_TROUBLE_S = 2.0
_REFUSED_S = 30.0
# Answers that the next chunk would get too: too large, not understood, no room for logs.
_REFUSALS = frozenset({413, 422, 507})
_DRAIN_S = 5.0


@dataclass
class _Cursor:
    """How much of a log the server has, when that was learned, and when to try again."""

    offset: int
    known_at: float
    not_before: float = 0.0


class Shipping:
    """Sends logs. ``logs()`` lists those to send, the newest of each worker first."""

    def __init__(
        self, connection: AgentConnection, exchange: Exchange, logs: Callable[[], Sequence[RunFolder]]
    ) -> None:
        self._connection = connection
        self._exchange = exchange
        self._logs = logs
        self._cursors: dict[tuple[int, int], _Cursor] = {}

    def run(self) -> None:
        """Send until the exchange is closed, and the rest for a few seconds after."""
        while self._exchange.wait(0.0 if self.ship() else _LOOK_S, for_change=False):
            pass
        until = time.monotonic() + _DRAIN_S
        while self.ship() and time.monotonic() < until:
            pass

    def ship(self) -> bool:
        """Send one chunk of each log that has grown; return whether there was any."""
        orders, sent_at = self._exchange.orders()
        logs = self._logs()
        known = {(log.number, log.generation) for log in logs}
        self._cursors = {key: cursor for key, cursor in self._cursors.items() if key in known}
        progress = False
        for log in logs:
            cursor = self._cursor(log, orders.get(log.number), sent_at)
            if cursor is not None and time.monotonic() >= cursor.not_before:
                progress |= self._send(log, cursor)
        return progress

    def _cursor(self, log: RunFolder, order: WorkerOrder | None, sent_at: float) -> _Cursor | None:
        """Return where to continue: the server's offset, unless it is older than its last answer to a
        chunk.
        """
        cursor = self._cursors.get((log.number, log.generation))
        if order is None:
            return cursor
        offset = order.log_offset if order.generation == log.generation else None
        if cursor is None:
            cursor = self._cursors[log.number, log.generation] = _Cursor(offset or 0, sent_at)
        elif offset is not None and (offset > cursor.offset or sent_at > cursor.known_at):
            cursor.offset, cursor.known_at = offset, sent_at
        return cursor

    def _send(self, log: RunFolder, cursor: _Cursor) -> bool:
        chunk = _read(log.path / records.LOG, cursor.offset)
        if not chunk:
            return False
        try:
            taken = self._connection.send_log(log.number, log.generation, cursor.offset, chunk)
        except RequestError as trouble:  # the heartbeats report the problem
            refused = trouble.status in _REFUSALS
            cursor.not_before = time.monotonic() + (_REFUSED_S if refused else _TROUBLE_S)
            return False
        progress = taken > cursor.offset
        cursor.offset, cursor.known_at = taken, time.monotonic()
        if not progress:
            cursor.not_before = cursor.known_at + _TROUBLE_S
        time.sleep(len(chunk) / _RATE_BYTES_S)
        return progress


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(MAX_LOG_CHUNK)
    except OSError:
        return b""
