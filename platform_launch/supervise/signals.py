"""Signals as data: a handler only records, one loop decides. A launch has one inbox from first to last."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
# A batch system's early warnings must not end a launcher that still waits for the others.
WARNING = frozenset({signal.SIGUSR1, signal.SIGUSR2})
_NEVER_IGNORED = (signal.SIGTERM, signal.SIGCHLD)
HANDLED = (*sorted(ENDING), *sorted(WARNING), signal.SIGWINCH, signal.SIGCHLD)


class Interrupted(BaseException):  # like KeyboardInterrupt: nothing between may take it for an error
    """A signal asked for the end while no training was running."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class SignalInbox:
    """Turns signals, and wake-ups from other threads, into bytes of a pipe that a loop can wait on.

    A signal that the caller ignores stays ignored, so ``nohup`` keeps its meaning. SIGCHLD is an exception,
    because the exit code of a child is lost where it is ignored, and SIGTERM: a script that ignores it, to
    outlive what it starts, means itself. Enter it in the main thread. A signal that was blocked until then
    (``start_multinode_platform.sh`` as the first process of a container) arrives now.
    """

    def __init__(self, signals: Iterable[signal.Signals] = HANDLED) -> None:
        self._signals = tuple(signals)
        self._previous: dict[signal.Signals, Any] = {}
        self._lock = threading.Lock()
        self._write = -1
        self._at_once = False
        self.fd = -1

    def open(self) -> SignalInbox:
        """Enter it for the rest of the process, whose exit code its last moments must not replace."""
        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._previous_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in self._signals:
            if number in _NEVER_IGNORED or signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)
        atexit.register(self._outlast)
        return self

    def _outlast(self) -> None:
        """Ignore what the interpreter, as it ends, would give back to the system, which ends the process."""
        for number in self._previous.keys() & (ENDING | WARNING):
            signal.signal(number, signal.SIG_IGN)

    def __enter__(self) -> SignalInbox:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the signals back to whoever had them before."""
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()
        atexit.unregister(self._outlast)
        signal.set_wakeup_fd(self._previous_wakeup)
        with self._lock:
            os.close(self.fd)
            os.close(self._write)
            self.fd = self._write = -1

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raise :class:`Interrupted` for a signal that asks for the end, wherever the main thread is."""
        self._at_once = True
        try:
            self.heed()
            yield
        finally:
            self._at_once = False

    def heed(self) -> None:
        """Take what arrived. Raises Interrupted where one of these signals asks for the end."""
        for number in self.take():
            if number in ENDING:
                raise Interrupted(number)

    def take(self) -> list[signal.Signals]:
        """Return what arrived since the last call, oldest first; empty when it was only a wake-up."""
        with suppress(BlockingIOError):
            return [signal.Signals(byte) for byte in os.read(self.fd, 4096) if byte]
        return []

    def wake(self) -> None:
        """Wake the loop from any thread; nothing happens while no loop is running."""
        with self._lock:
            if self._write >= 0:
                # A full pipe wakes the loop as well.
                with suppress(BlockingIOError):
                    os.write(self._write, b"\0")

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Record nothing: the interpreter has written the number to the wake-up descriptor."""
        if self._at_once and number in ENDING:
            raise Interrupted(signal.Signals(number))
