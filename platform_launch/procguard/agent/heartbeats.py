"""The thread that sends heartbeats: regularly, at once after a change, with back-off after a failure."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from platform_launch.procguard.agent.connection import NAME_TAKEN, AgentConnection, RequestError
from platform_launch.procguard.agent.exchange import Exchange

_JITTER = 0.1
# A connection that the server closed while idle causes one failure, which is not logged.
_FIRST_RETRY_S = 0.2
_LONGEST_RETRY_S = 15.0
_DEFAULT_S = 2.0
# Answers to a join that retrying will not change: a wrong token, a request the server does not understand.
_FOR_GOOD = frozenset({400, 401, 422})


class HeartbeatSender:
    """Sends what the exchange holds. ``log(level, text)`` is called on changes, not on every attempt.

    ``refused_for_good``: why the server has never accepted this agent and never will. ``replaced_since``:
    when the server first said that another agent has this node's name (monotonic clock), None if it has not.
    """

    def __init__(
        self, connection: AgentConnection, exchange: Exchange, log: Callable[[str, str], None]
    ) -> None:
        self.refused_for_good: RequestError | None = None
        self.replaced_since: float | None = None
        self._joined = False
        self._connection = connection
        self._exchange = exchange
        self._log = log
        self._failures = 0
        self._last_logged = ""

    def run(self) -> None:
        """Send until the exchange is closed, and one last time then."""
        pause_s, going = 0.0, True
        while going:
            going = self._exchange.wait(pause_s, for_change=self._failures == 0)
            try:
                pause_s = self._beat() * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - spreads load
            except RequestError as trouble:
                pause_s = self._failed(trouble)

    def _beat(self) -> float:
        sent_at = time.monotonic()
        orders = self._connection.beat(
            self._exchange.reports_to_send(),
            self._exchange.machine,
            self._exchange.quarantine,
            self._exchange.gpu_processes,
        )
        self._exchange.answer(orders, sent_at)
        if self._last_logged or not self._joined:
            self._log("SUCCESS", f"connected to {self._connection.url}")
        self._joined, self._failures, self._last_logged = True, 0, ""
        self.refused_for_good, self.replaced_since = None, None
        return min(max(orders.heartbeat_s, 0.05), 60.0) if orders.heartbeat_s > 0 else _DEFAULT_S

    def _failed(self, trouble: RequestError) -> float:
        self._failures += 1
        if not self._joined and trouble.status in _FOR_GOOD:
            self.refused_for_good = trouble
        if trouble.status == NAME_TAKEN and self.replaced_since is None:
            self.replaced_since = time.monotonic()
        worth_a_word = self._failures > 1 or trouble.status
        if self.refused_for_good is None and trouble.text != self._last_logged and worth_a_word:
            self._last_logged = trouble.text
            self._log("WARN", f"{trouble.text}; trying again, runs here continue")
        longest_s = min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2.0 ** min(self._failures - 1, 16))
        return longest_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load
