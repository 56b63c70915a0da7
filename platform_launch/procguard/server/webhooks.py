"""Telling others: a message to each webhook when a group failed, is degraded, or has finished.

What is told stands in the audit log too: nothing depends on a message that arrives. A message holds no
command, no variable and no log: names, what happened, and the page's address.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from prometheus_client import Counter

from platform_launch.procguard.api.shapes.events import AuditEvent
from platform_launch.procguard.server.settings import Webhook
from platform_launch.procguard.server.webhook_forms import REFUSAL_KEYS, Notice, body, refusal

if TYPE_CHECKING:
    import httpx

_TRIES = 5
_FIRST_PAUSE_S = 2.0
# From the first look-up of a name to the last byte of an answer, of which no more is read than this.
_LIMIT_S = 10.0
_LONGEST_ANSWER = 64 * 1024
_MOST_WAITING = 200
_TOO_MANY = "too many messages wait for it"
_LOG = logging.getLogger(__name__)


@dataclass
class _Message:
    """What one receiver is to be told, and how often that was tried."""

    notice: Notice
    tries: int = 0


@dataclass
class _Receiver:
    """Whom to tell, what of, and when to go on. Nobody is told of the end first."""

    hook: Webhook
    waiting: deque[_Message] = field(default_factory=deque)
    due: float = 0.0


class Webhooks:
    """Sends in a thread of its own, from :meth:`start` to :meth:`stop`; a message is tried five times.

    ``counted`` counts what became of each, by result.
    """

    def __init__(self, hooks: tuple[Webhook, ...], page: str, counted: Counter) -> None:
        self._receivers = [_Receiver(hook) for hook in hooks]
        self._page = page.rstrip("/")
        self._something = threading.Condition()
        self._leaving = False
        self._thread = threading.Thread(target=self._work, name="procguard-webhooks", daemon=True)
        self._counted = counted

    def start(self) -> None:
        """Begin, where there is anybody to tell."""
        if self._receivers:
            self._thread.start()

    def stop(self) -> None:
        """End; what could not be delivered so far is not tried again."""
        with self._something:
            self._leaving = True
            self._something.notify_all()
        if self._receivers:
            self._thread.join()

    def receive(self, event: AuditEvent) -> None:
        """Take an entry of the audit log; only some of them are told. Waits for nothing."""
        chosen = [receiver for receiver in self._receivers if event.action in receiver.hook.events]
        if not chosen:
            return
        where = f"{self._page}/groups/{event.object}" if self._page else ""
        values = event.model_dump(mode="json", include={"code", "values"}, exclude_defaults=True)
        notice = Notice(event.object, event.action, event.detail, event.at.isoformat(), where, **values)
        crowded_out = []
        with self._something:
            for receiver in chosen:
                if len(receiver.waiting) >= _MOST_WAITING:
                    crowded_out.append((receiver.hook, receiver.waiting.popleft()))
                receiver.waiting.append(_Message(notice))
            self._something.notify_all()
        for hook, message in crowded_out:
            self._lose(hook, message, _TOO_MANY)

    def _work(self) -> None:
        import httpx  # a twelfth of what a server's start costs, and most servers tell nobody

        loop = asyncio.new_event_loop()
        # Answers are read as they come: unpacked, a short one may be endless.
        plain = {"Accept-Encoding": "identity"}
        client = httpx.AsyncClient(timeout=_LIMIT_S, follow_redirects=False, headers=plain)
        while (due := self._next()) is not None:
            receiver, message = due
            trouble = loop.run_until_complete(_sent(client, receiver.hook, message.notice))
            message.tries += 1
            if not trouble:
                receiver.due = 0.0
                self._counted.labels("sent").inc()
            elif message.tries >= _TRIES:
                receiver.due = 0.0
                self._lose(receiver.hook, message, trouble)
            elif not self._again(receiver, message):
                self._lose(receiver.hook, message, f"{trouble}, and {_TOO_MANY}")
        loop.run_until_complete(client.aclose())
        loop.close()

    def _again(self, receiver: _Receiver, message: _Message) -> bool:
        """Put a message back to be tried later; tell whether there was room."""
        receiver.due = time.monotonic() + _FIRST_PAUSE_S * 2 ** (message.tries - 1)
        with self._something:
            if len(receiver.waiting) >= _MOST_WAITING:
                return False
            receiver.waiting.appendleft(message)
            return True

    def _lose(self, hook: Webhook, message: _Message, trouble: str) -> None:
        self._counted.labels("lost").inc()
        # Its path is the receiver's secret: only the host is named.
        where = f"{hook.kind} at {urlsplit(hook.url).hostname}"
        _LOG.warning("%s was not told of %s: %s", where, message.notice.group, trouble)

    def _next(self) -> tuple[_Receiver, _Message] | None:
        """Wait for a message that is due; None at the end."""
        with self._something:
            while not self._leaving:
                now = time.monotonic()
                waiting = [receiver for receiver in self._receivers if receiver.waiting]
                for receiver in waiting:
                    if receiver.due <= now:
                        return receiver, receiver.waiting.popleft()
                first = min((receiver.due for receiver in waiting), default=now + 3600)
                self._something.wait(first - now)
            return None


async def _sent(client: httpx.AsyncClient, hook: Webhook, notice: Notice) -> str:
    """Send a message; say what went wrong, nothing where it was taken."""
    try:
        # A limit for the whole: one for each read never ends an answer that comes a byte at a time.
        return await asyncio.wait_for(_answered(client, hook, notice), _LIMIT_S)
    except Exception as error:  # whatever one receiver answers, the others are told
        return type(error).__name__


async def _answered(client: httpx.AsyncClient, hook: Webhook, notice: Notice) -> str:
    content = bytearray()
    async with client.stream("POST", hook.url, json=body(hook.kind, notice)) as answer:
        if answer.is_success and hook.kind in REFUSAL_KEYS:
            async for part in answer.aiter_raw():
                content += part
                if len(content) > _LONGEST_ANSWER:
                    break
    return refusal(hook.kind, answer.status_code, bytes(content))
