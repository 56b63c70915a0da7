"""Telling others: a message to each webhook when a group failed, is degraded, or has finished.

What is told stands in the audit log too: nothing depends on a message that arrives. A message holds no
command, no variable and no log: names, what happened, and the page's address.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from urllib.parse import urlsplit

import httpx
from prometheus_client import Counter

from platform_launch.procguard.api.shapes.events import AuditEvent
from platform_launch.procguard.server.settings import Webhook
from platform_launch.procguard.server.webhook_forms import Notice, body, refusal

TOLD = ("failed", "failing", "degraded", "recovered", "finished")
_TRIES = 5
_FIRST_PAUSE_S = 2.0
_TIMEOUT_S = 10.0
_MOST_WAITING = 200
_LOG = logging.getLogger(__name__)


class Webhooks:
    """Sends in a thread of its own, from :meth:`start` to :meth:`stop`; a message is tried five times.

    ``counted`` counts what became of each, by result.
    """

    def __init__(self, hooks: tuple[Webhook, ...], page: str, counted: Counter) -> None:
        self._hooks = hooks
        self._page = page.rstrip("/")
        self._waiting: deque[tuple[float, int, Webhook, Notice]] = deque(maxlen=_MOST_WAITING)
        self._something = threading.Condition()
        self._leaving = False
        self._thread = threading.Thread(target=self._work, name="procguard-webhooks", daemon=True)
        self._counted = counted

    def start(self) -> None:
        """Begin, where there is anybody to tell."""
        if self._hooks:
            self._thread.start()

    def stop(self) -> None:
        """End; what could not be delivered so far is not tried again."""
        with self._something:
            self._leaving = True
            self._something.notify_all()
        if self._hooks:
            self._thread.join()

    def hear(self, event: AuditEvent) -> None:
        """Take an entry of the audit log; only some of them are told. Waits for nothing."""
        if event.action not in TOLD:
            return
        where = f"{self._page}/groups/{event.object}" if self._page else ""
        notice = Notice(event.object, event.action, event.detail, event.at.isoformat(), where)
        with self._something:
            for hook in self._hooks:
                if event.action in hook.events:
                    self._waiting.append((time.monotonic(), 1, hook, notice))
            self._something.notify_all()

    def _work(self) -> None:
        with httpx.Client(timeout=_TIMEOUT_S, follow_redirects=False) as client:
            while (due := self._next()) is not None:
                _, attempt, hook, notice = due
                trouble = self._send(client, hook, notice)
                if not trouble:
                    self._counted.labels("sent").inc()
                elif attempt < _TRIES:
                    again = time.monotonic() + _FIRST_PAUSE_S * 2 ** (attempt - 1)
                    with self._something:
                        self._waiting.append((again, attempt + 1, hook, notice))
                else:
                    self._counted.labels("lost").inc()
                    # Its path is the receiver's secret: only the host is named.
                    _LOG.warning(
                        "%s was not told of %s: %s", urlsplit(hook.url).hostname, notice.group, trouble
                    )

    def _next(self) -> tuple[float, int, Webhook, Notice] | None:
        """Wait for a message that is due; None at the end."""
        with self._something:
            while not self._leaving:
                now = time.monotonic()
                for entry in list(self._waiting):
                    if entry[0] <= now:
                        self._waiting.remove(entry)
                        return entry
                first = min((entry[0] for entry in self._waiting), default=now + 3600)
                self._something.wait(first - now)
            return None

    def _send(self, client: httpx.Client, hook: Webhook, notice: Notice) -> str:
        try:
            answer = client.post(hook.url, json=body(hook.kind, notice))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return type(error).__name__
        return refusal(hook.kind, answer)
