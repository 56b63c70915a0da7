"""The thread that brings groups forward, twice a second."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from platform_launch.procguard.api.refused import Superseded, Unavailable

_LOG = logging.getLogger(__name__)
EVERY_S = 0.5
_LATE_S = 15.0


class ControlLoop:
    """Calls ``tick`` every half second from :meth:`start` to :meth:`stop`.

    A database that cannot be written is no fault here: reports are repeated, and so is the attempt. Only
    Superseded ends it: ``superseded`` then says why this server must end.
    """

    superseded: Superseded | None = None

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._work, name="procguard-control-loop", daemon=True)
        self._last = time.monotonic()
        self._trouble = ""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the step that is being made."""
        self._leave.set()
        self._thread.join()

    @property
    def trouble(self) -> str:
        """What keeps groups from being advanced now; empty while they are."""
        late_s = time.monotonic() - self._last
        return f"groups were not looked after for {late_s:.0f} s" if late_s > _LATE_S else self._trouble

    def _work(self) -> None:
        while not self._leave.wait(EVERY_S):
            try:
                self._tick()
                trouble = ""
            except Superseded as error:
                self._trouble, self.superseded = str(error), error
                return
            except Unavailable as error:
                trouble = str(error)
                if trouble != self._trouble:  # said once, not twice a second
                    _LOG.warning("groups cannot be advanced: %s", trouble)
            except Exception as error:
                trouble = str(error) or type(error).__name__
                if trouble != self._trouble:
                    _LOG.exception("groups cannot be advanced")
            self._trouble = trouble
            self._last = time.monotonic()
