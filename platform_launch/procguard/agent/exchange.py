"""What the agent's threads tell each other: the newest reports one way, the newest orders the other."""

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
    """Holds the last of each; ``wake`` is called when orders have come."""

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
    """The last reading of the node; of no hurry."""
    gpu_processes: tuple[ForeignGpuProcess, ...] = ()
    """Other people's, on this node's GPUs."""
    quarantine: QuarantineReport | None = None
    """What holds the node; of no hurry either."""
    release: float | None = None
    """When the quarantine began that the server wants ended."""

    def offer(self, reports: Sequence[WorkerReport]) -> None:
        """Say what is now; a change is to be sent at once."""
        with self._changed:
            self._reports = tuple(reports)
            if _essence(self._reports) != self._sent:
                self._changed.notify_all()

    def take(self) -> tuple[WorkerReport, ...]:
        """Return what is to be sent now."""
        with self._changed:
            self._sent = _essence(self._reports)
            return self._reports

    def answer(self, orders: WorkerOrders, sent_at: float) -> None:
        """Take the server's answer; ``sent_at``: when the heartbeat was sent, on the monotonic clock."""
        with self._changed:
            self._orders, self._questions, self._sent_at = orders.orders, orders.questions, sent_at
            self.release = orders.release
        self._wake()

    def orders(self) -> tuple[Mapping[int, WorkerOrder], float]:
        """Return the last orders and when the heartbeat was sent that they answer."""
        with self._changed:
            return self._orders, self._sent_at

    def take_questions(self) -> Mapping[int, str]:
        """Return what somebody wants to see of workers, by number: once, as answers repeat it."""
        with self._changed:
            questions, self._questions = self._questions, {}
            return questions

    def wait(self, limit_s: float, *, for_change: bool) -> bool:
        """Wait; end at once when closed, and with ``for_change`` when there is news. False when closed."""
        until = time.monotonic() + limit_s
        with self._changed:
            while not self._closed and (left := until - time.monotonic()) > 0:
                if for_change and _essence(self._reports) != self._sent:
                    break
                self._changed.wait(left)
            return not self._closed

    def close(self) -> None:
        """Let every thread come to its end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _essence(reports: Sequence[WorkerReport]) -> tuple[WorkerReport, ...]:
    """Return the reports without what changes all the time."""
    quiet = {"log_bytes": 0, "gpus": (), "ended_s_ago": None, "steps_per_s": None, "moved_s_ago": None}
    return tuple(report.model_copy(update=quiet) for report in reports)
