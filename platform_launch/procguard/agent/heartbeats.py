"""The thread that sends heartbeats: regularly, at once after a change, with back-off after a failure.

An :class:`Exchange` passes the newest reports and the newest orders between the agent's threads.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from platform_launch.procguard.agent.connection import NAME_TAKEN, AgentConnection, RequestError
from platform_launch.procguard.api.wire import (
    ForeignGpuProcess,
    MachineReport,
    QuarantineReport,
    WorkerOrder,
    WorkerOrders,
    WorkerReport,
)


class Exchange:
    """Holds the latest of each; ``wake`` is called when orders arrive."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._changed = threading.Condition()
        self._reports: tuple[WorkerReport, ...] = ()
        self._sent: tuple[WorkerReport, ...] = ()
        self._orders: Mapping[int, WorkerOrder] = {}
        self._questions: Mapping[int, str] = {}
        self._sent_at = float("-inf")
        self._closed = False

    machine: MachineReport | None = None
    """The last reading of the node; not urgent."""
    gpu_processes: tuple[ForeignGpuProcess, ...] = ()
    """Processes of other users on this node's GPUs."""
    quarantine: QuarantineReport | None = None
    """The node's quarantine, if any; not urgent either."""
    release: float | None = None
    """Start of the quarantine that the server wants ended."""

    def offer(self, reports: Sequence[WorkerReport]) -> None:
        """Set the current reports; a change is sent at once."""
        with self._changed:
            self._reports = tuple(reports)
            if _essence(self._reports) != self._sent:
                self._changed.notify_all()

    def reports_to_send(self) -> tuple[WorkerReport, ...]:
        """Return the reports to send now."""
        with self._changed:
            self._sent = _essence(self._reports)
            return self._reports

    def answer(self, orders: WorkerOrders, sent_at: float) -> None:
        """Store the server's answer to the heartbeat sent at ``sent_at`` (monotonic clock)."""
        with self._changed:
            self._orders, self._questions, self._sent_at = orders.orders, orders.questions, sent_at
            self.release = orders.release
        self._wake()

    def orders(self) -> tuple[Mapping[int, WorkerOrder], float]:
        """Return the last orders, and when the heartbeat they answer was sent."""
        with self._changed:
            return self._orders, self._sent_at

    def new_questions(self) -> Mapping[int, str]:
        """Return new inspection questions by worker number, each once, although answers repeat them."""
        with self._changed:
            questions, self._questions = self._questions, {}
            return questions

    def wait(self, limit_s: float, *, for_change: bool) -> bool:
        """Wait; with ``for_change``, return early on a change. Returns False once closed."""
        until = time.monotonic() + limit_s
        with self._changed:
            while not self._closed and (left := until - time.monotonic()) > 0:
                if for_change and _essence(self._reports) != self._sent:
                    break
                self._changed.wait(left)
            return not self._closed

    def close(self) -> None:
        """Make every thread finish."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _essence(reports: Sequence[WorkerReport]) -> tuple[WorkerReport, ...]:
    """Return the reports without the values that change all the time."""
    quiet = {"log_bytes": 0, "gpus": (), "ended_s_ago": None, "steps_per_s": None, "moved_s_ago": None}
    return tuple(report.model_copy(update=quiet) for report in reports)


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
