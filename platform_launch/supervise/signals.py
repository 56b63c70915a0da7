"""Signals as data: handlers only record them, and one loop acts on them. A launch has one inbox."""

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


class Interrupted(BaseException):  # like KeyboardInterrupt: code in between must not handle it as an error
    """A signal requested the stop while no command was running."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class SignalInbox:
    """Turns signals, and wake-ups from other threads, into bytes of a pipe that a loop can wait on.

    A signal that the caller ignores stays ignored, so ``nohup`` works. There are two exceptions: SIGCHLD,
    because ignoring it loses the exit codes of children, and SIGTERM, because a script that ignores it to
    outlive its children only means itself. Enter it in the main thread. A signal that was blocked until then
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
        """Enter it until the process exits; later signals no longer change the exit code."""
        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._previous_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in self._signals:
            if number in _NEVER_IGNORED or signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)
        atexit.register(self._outlast)
        return self

    def _outlast(self) -> None:
        """Ignore signals while the interpreter exits: their default action would kill the process."""
        for number in self._previous.keys() & (ENDING | WARNING):
            signal.signal(number, signal.SIG_IGN)

    def __enter__(self) -> SignalInbox:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Restore the previous handlers."""
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
        """Raise :class:`Interrupted` in the main thread for a signal that requests the stop."""
        self._at_once = True
        try:
            self.check()
            yield
        finally:
            self._at_once = False

    def check(self) -> None:
        """Discard the signals that arrived. Raises Interrupted if one of them requests the stop."""
        for number in self.receive():
            if number in ENDING:
                raise Interrupted(number)

    def receive(self) -> list[signal.Signals]:
        """Return the signals since the last call, oldest first; empty after a mere wake-up."""
        with suppress(BlockingIOError):
            return [signal.Signals(byte) for byte in os.read(self.fd, 4096) if byte]
        return []

    def wake(self) -> None:
        """Wake the loop from any thread; without a running loop, nothing happens."""
        with self._lock:
            if self._write >= 0:
                # A full pipe wakes the loop as well.
                with suppress(BlockingIOError):
                    os.write(self._write, b"\0")

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Do nothing: the interpreter has written the number to the wake-up descriptor."""
        if self._at_once and number in ENDING:
            raise Interrupted(signal.Signals(number))
