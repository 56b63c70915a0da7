"""The thread that owns every connection of a rendezvous: one asyncio event loop.

Nothing else touches a connection. This thread never prints, imports, resolves names, starts processes or
takes a lock that somebody holds across I/O, so a busy launcher does not send late heartbeats. Problems that
asyncio itself would log (to a standard error that may be blocked) are kept until another thread asks.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from functools import cache
from threading import Lock, Thread
from typing import Any, TypeVar

from platform_launch.text import Phrase

T = TypeVar("T")

_MOST_PROBLEMS = 64


class ConnectionLostError(Exception):
    """The connection to the other side is broken, or it did not answer in time."""


class ConnectionSilentError(ConnectionLostError):
    """No answer came within the limit. ``silent_s`` is how long that was."""

    def __init__(self, silent_s: float) -> None:
        super().__init__(Phrase("no answer within {silent:.0f} s", silent=silent_s))
        self.silent_s = silent_s


class EventLoop:
    """An asyncio event loop in a daemon thread. Methods may be called from any other thread."""

    def __init__(self) -> None:
        self._problems: deque[str] = deque(maxlen=_MOST_PROBLEMS)
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._on_problem)
        logger = logging.getLogger("asyncio")
        logger.addHandler(_Keeper(self._problems))
        logger.propagate = False
        self._thread = Thread(target=self._loop.run_forever, name="rendezvous-io", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Run a coroutine and return what it returns. Raises ConnectionSilentError after ``limit_s``."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(limit_s)
        except FutureTimeoutError:
            if future.done():  # the coroutine's own TimeoutError
                raise
            future.cancel()
            raise ConnectionSilentError(limit_s) from None

    def post(self, action: Callable[..., object], *arguments: object) -> None:
        """Let the loop's thread call something soon."""
        with suppress(RuntimeError):  # the loop is closed: the process is exiting
            self._loop.call_soon_threadsafe(action, *arguments)

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Start a coroutine, from any thread."""
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def record(self, error: Exception) -> None:
        """Record an unexpected exception, with the line that raised it."""
        where = traceback.extract_tb(error.__traceback__)[-1]
        self._problems.append(f"{where.filename}:{where.lineno}: {type(error).__name__}: {error}")

    def problems(self) -> list[str]:
        """Return the problems since the last call."""
        found = []
        while self._problems:
            found.append(self._problems.popleft())
        return found

    def _on_problem(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._problems.append(f"{context.get('message', '')}: {type(error).__name__}: {error}")


class _Keeper(logging.Handler):
    """Keeps what asyncio logs."""

    def __init__(self, problems: deque[str]) -> None:
        super().__init__(logging.WARNING)
        self._problems = problems

    def emit(self, record: logging.LogRecord) -> None:
        self._problems.append(record.getMessage())


_first_use = Lock()


def event_loop() -> EventLoop:
    """Return the event loop of this process, which is started on first use."""
    with _first_use:  # without it, threads that come at the same time get a loop each
        return _only_loop()


@cache
def _only_loop() -> EventLoop:
    return EventLoop()
