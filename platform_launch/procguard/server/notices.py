"""Notices: a message to the server's receivers, and to whoever started a group, sent through Apprise.

What is sent stands in the audit log too: nothing depends on a message that arrives. A message holds no
command, no variable and no log: names, what happened, and the page's address.
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
from platform_launch.procguard.api.shapes.events import AuditEvent
from platform_launch.procguard.server.settings import NoticeReceiver

_TRIES = 5
_FIRST_PAUSE_S = 2.0
_MOST_WAITING = 200
_MOST_RECEIVERS = 256
_LONGEST = 1_500
_PERSONAL = frozenset({"failing", "failed", "degraded", "finished", "idle", "hold-ends"})
_LOG = logging.getLogger(__name__)

Recipient = Callable[[str], str]


def receiver_at(address: str) -> Any:
    """Return what sends to an address. Raises InputError, InstallationError, which name no address."""
    try:
        import apprise  # half a second, and most servers send nothing
    except ImportError as error:
        raise InstallationError(
            "notices are sent by the package apprise, which is missing", install_extra("notices")
        ) from error
    found = apprise.Apprise.instantiate(address, suppress_exceptions=True)
    if found is None:
        raise InputError(
            f"{urlsplit(address).scheme or 'an address'}://…: not an address of Apprise",
            "such as slack://… or mailtos://…; https://github.com/caronc/apprise lists them",
        )
    return found


@dataclass(frozen=True)
class Notice:
    """What a message says."""

    group: str
    action: str
    detail: str
    url: str

    @property
    def title(self) -> str:
        """Return it at a glance."""
        return f"ProcGuard: {self.group} {self.action}"

    @property
    def body(self) -> str:
        """Return the rest. It calls nobody: in chats, <!channel> or <at …> would."""
        text = self.detail.replace("<", "‹").replace(">", "›")
        cut = text.encode()[:_LONGEST].decode(errors="ignore")
        return f"{cut} {self.url}".strip() or self.action


class _Receiver:
    """Sends to one address in a thread of its own: one that does not answer holds up nobody else."""

    def __init__(self, address: str, counted: Counter, leaving: threading.Event) -> None:
        self._name = f"{urlsplit(address).scheme}://…"  # the rest may be a secret
        self._address = address
        self._counted = counted
        self._leaving = leaving
        self._waiting: queue.Queue[Notice] = queue.Queue(_MOST_WAITING)
        threading.Thread(target=self._run, name="procguard-notices", daemon=True).start()

    def put(self, notice: Notice) -> None:
        """Send this after what waits already; what finds no room is lost."""
        try:
            self._waiting.put_nowait(notice)
        except queue.Full:
            self._lose(notice, "too many messages wait for it")

    def _run(self) -> None:
        while not self._leaving.is_set():
            try:
                notice = self._waiting.get(timeout=1.0)
            except queue.Empty:
                continue
            if trouble := self._send(notice):
                self._lose(notice, trouble)
            else:
                self._counted.labels("sent").inc()

    def _send(self, notice: Notice) -> str:
        """Send a message, with several tries; return why it was not taken."""
        trouble = ""
        for attempt in range(_TRIES):
            if attempt and self._leaving.wait(_FIRST_PAUSE_S * 2 ** (attempt - 1)):
                break
            try:
                if receiver_at(self._address).notify(title=notice.title, body=notice.body):
                    return ""
                trouble = "it was not taken"
            except (InputError, InstallationError) as error:
                return str(error)
            except Exception as error:  # whatever one receiver answers, the others get theirs
                trouble = type(error).__name__
        return trouble or "the server ends"

    def _lose(self, notice: Notice, trouble: str) -> None:
        self._counted.labels("lost").inc()
        _LOG.warning("%s was sent no notice of %s: %s", self._name, notice.group, trouble)


class Notices:
    """Sends from :meth:`start` to :meth:`stop`.

    ``recipient`` returns the address of whoever is to hear of a group, empty if nobody is; it may read the
    database. ``counted`` counts what became of each message.
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
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what could not be delivered so far is not tried again."""
        self._leaving.set()
        self._events.put(None)
        self._thread.join()

    def receive(self, event: AuditEvent) -> None:
        """Take an entry of the audit log; only some of them are sent. Waits for nothing."""
        self._events.put(event)

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._pass_on(event)
            except Exception:  # one event's trouble is not the next one's
                _LOG.exception("a notice of %s was not sent", event.object)

    def _pass_on(self, event: AuditEvent) -> None:
        # A run that fails is reported when it does; that it has stopped then is no news.
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
                receiver.put(notice)

    def _addresses(self, event: AuditEvent) -> Collection[str]:
        found = [receiver.url for receiver in self._common if event.action in receiver.events]
        if event.action in _PERSONAL and (own := self._recipient(event.object)):
            found.append(own)
        return dict.fromkeys(found)
