"""Notices to the server's receivers and to whoever started a group, sent through Apprise.

Everything sent is in the audit log too: nothing depends on delivery. A notice has no command, variable or
log: only names, what happened, and the page's URL.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import Counter

from platform_launch.errors import InputError, InstallationError
from platform_launch.extras import install_extra
from platform_launch.procguard.api.shapes.history import AuditEvent
from platform_launch.procguard.server.settings import NoticeReceiver
from platform_launch.text import Phrase

_TRIES = 5
_FIRST_PAUSE_S = 2.0
_MOST_WAITING = 200
_MOST_RECEIVERS = 256
_LONGEST = 1_500
_PERSONAL = frozenset({"failing", "failed", "degraded", "finished", "idle", "hold-ends"})
_LOG = logging.getLogger(__name__)

Recipient = Callable[[str], str]


def receiver_at(address: str) -> Any:
    """Return the sender for an address. Raises InputError or InstallationError, which do not reveal the
    address.
    """
    try:
        import apprise  # takes half a second, and most servers send nothing
    except ImportError as error:
        raise InstallationError(
            "notices need the package apprise, which is not installed", install_extra("notices")
        ) from error
    found = apprise.Apprise.instantiate(address, suppress_exceptions=True)
    if found is None:
        raise InputError(
            Phrase("{scheme}://…: not an Apprise address", scheme=urlsplit(address).scheme or "?"),
            "such as slack://… or mailtos://…; see https://github.com/caronc/apprise",
        )
    return found


@dataclass(frozen=True)
class Notice:
    """The content of a notice."""

    group: str
    action: str
    detail: str
    url: str

    @property
    def title(self) -> str:
        """Return the title."""
        return f"ProcGuard: {self.group} {self.action}"

    @property
    def body(self) -> str:
        """Return the text. It mentions nobody: in chats, <!channel> or <at …> would."""
        text = self.detail.replace("<", "‹").replace(">", "›")
        cut = text.encode()[:_LONGEST].decode(errors="ignore")
        return f"{cut} {self.url}".strip() or self.action


class _Receiver:
    """Sends to one address in its own thread, so that a slow receiver delays no others."""

    def __init__(self, address: str, counted: Counter, leaving: threading.Event) -> None:
        self._name = f"{urlsplit(address).scheme}://…"  # the rest may be a secret
        self._address = address
        self._counted = counted
        self._leaving = leaving
        self._waiting: queue.Queue[Notice] = queue.Queue(_MOST_WAITING)
        threading.Thread(target=self._run, name="procguard-notices", daemon=True).start()

    def send(self, notice: Notice) -> None:
        """Queue a notice; if the queue is full, it is lost."""
        try:
            self._waiting.put_nowait(notice)
        except queue.Full:
            self._report_lost(notice, "too many notices are waiting")

    def _run(self) -> None:
        while not self._leaving.is_set():
            try:
                notice = self._waiting.get(timeout=1.0)
            except queue.Empty:
                continue
            if trouble := self._attempt(notice):
                self._report_lost(notice, trouble)
            else:
                self._counted.labels("sent").inc()

    def _attempt(self, notice: Notice) -> str:
        """Send a notice, with several attempts; return why it failed."""
        trouble = ""
        for attempt in range(_TRIES):
            if attempt and self._leaving.wait(_FIRST_PAUSE_S * 2 ** (attempt - 1)):
                break
            try:
                if receiver_at(self._address).notify(title=notice.title, body=notice.body):
                    return ""
                trouble = "it was not accepted"
            except (InputError, InstallationError) as error:
                return str(error)
            except Exception as error:  # a failing receiver must not affect others
                trouble = type(error).__name__
        return trouble or "the server is stopping"

    def _report_lost(self, notice: Notice, trouble: str) -> None:
        self._counted.labels("lost").inc()
        _LOG.warning("notice about %s to %s failed: %s", notice.group, self._name, trouble)


class Notices:
    """Sends notices from :meth:`start` to :meth:`stop`.

    ``recipient`` returns the address for a group's notices, or empty; it may read the database. ``counted``
    counts notices by result.
    """

    def __init__(
        self, receivers: Sequence[NoticeReceiver], recipient: Recipient, page: str, counted: Counter
    ) -> None:
        self._leaving = threading.Event()
        self._counted = counted
        self._common = receivers
        for receiver in receivers:
            receiver_at(receiver.url)
        self._recipient = recipient
        self._page = page.rstrip("/")
        self._events: queue.SimpleQueue[AuditEvent | None] = queue.SimpleQueue()
        self._by_address: dict[str, _Receiver] = {}
        self._failing: dict[str, object] = {}
        self._thread = threading.Thread(target=self._run, name="procguard-notices", daemon=True)

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; undelivered notices are dropped."""
        self._leaving.set()
        self._events.put(None)
        self._thread.join()

    def receive(self, event: AuditEvent) -> None:
        """Accept an entry of the audit log; only some are sent. Does not block."""
        self._events.put(event)

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._pass_on(event)
            except Exception:  # one event's failure must not affect the next
                _LOG.exception("a notice about %s was not sent", event.object)

    def _pass_on(self, event: AuditEvent) -> None:
        # A failure is reported once, when it happens; the stop that follows is not.
        run = event.values.get("run")
        if event.action == "failing":
            self._failing[event.object] = run
        elif event.action == "failed" and self._failing.pop(event.object, None) == run is not None:
            return
        where = f"{self._page}/groups/{event.object}" if self._page else ""
        notice = Notice(event.object, event.action, event.detail, where)
        for address in self._addresses(event):
            receiver = self._by_address.get(address)
            if receiver is None and len(self._by_address) < _MOST_RECEIVERS:
                receiver = self._by_address[address] = _Receiver(address, self._counted, self._leaving)
            if receiver is not None:
                receiver.send(notice)

    def _addresses(self, event: AuditEvent) -> Collection[str]:
        found = [receiver.url for receiver in self._common if event.action in receiver.events]
        if event.action in _PERSONAL and (own := self._recipient(event.object)):
            found.append(own)
        return dict.fromkeys(found)
