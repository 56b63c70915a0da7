"""Passes the newest reports and the newest orders between the agent's threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

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
