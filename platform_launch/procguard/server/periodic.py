"""A thread that repeats its work: advancing groups, measuring, deleting old logs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from platform_launch.procguard.api.refused import RequestRefused, Superseded

_LOG = logging.getLogger(__name__)
_LATE_S = 15.0


class PeriodicThread:
    """Does ``work`` every ``every_s`` seconds from :meth:`start` to :meth:`stop`.

    ``failure`` describes what it means if ``work`` raises, or returns why it is incomplete: that is logged
    once, not every time. A database or disk that cannot be used is not a bug and has no traceback. Only
    Superseded ends the thread: ``superseded`` is then why this server must stop.
    """

    superseded: Superseded | None = None

    def __init__(self, name: str, every_s: float, work: Callable[[], str | None], failure: str) -> None:
        self._work = work
        self._every_s = every_s
        self._failure = failure
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"procguard-{name}", daemon=True)
        self._done_at = time.monotonic()
        self._trouble = ""

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current work."""
        self._leave.set()
        self._thread.join()

    @property
    def trouble(self) -> str:
        """Why the work is not done at present; empty if it is."""
        late_s = time.monotonic() - self._done_at
        if late_s > self._every_s + _LATE_S:
            return f"{self._failure}: no progress for {late_s:.0f} s"
        return self._trouble

    def _run(self) -> None:
        while True:
            trouble = ""
            try:
                trouble = self._work() or ""
            except Superseded as error:
                self._trouble, self.superseded = str(error), error
                return
            except (RequestRefused, OSError) as error:
                trouble = str(error)
            except Exception as error:  # the thread must go on
                trouble = str(error) or type(error).__name__
                if trouble != self._trouble:
                    _LOG.exception(self._failure)
                    self._trouble = trouble
            if trouble and trouble != self._trouble:
                _LOG.warning("%s: %s", self._failure, trouble)
            self._trouble, self._done_at = trouble, time.monotonic()
            if self._leave.wait(self._every_s):
                return
