"""Signals as data: a handler only records, one loop decides."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType
from typing import Any


class SignalInbox:
    """Turns signals, and wake-ups from other threads, into bytes of a pipe that a loop can wait on.

    A signal that the caller ignores stays ignored, so ``nohup`` keeps its meaning; SIGCHLD is the exception,
    because the exit code of a child is lost where it is ignored. Enter it in the main thread.
    """

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        self._signals = tuple(signals)
        self._previous: dict[signal.Signals, Any] = {}
        self._lock = threading.Lock()
        self._write = -1
        self.fd = -1

    def __enter__(self) -> SignalInbox:
        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._previous_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in self._signals:
            if number is signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, _recorded_in_the_pipe)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()
        signal.set_wakeup_fd(self._previous_wakeup)
        with self._lock:
            os.close(self.fd)
            os.close(self._write)
            self.fd = self._write = -1

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


def _recorded_in_the_pipe(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the interpreter has written the number to the wake-up descriptor."""
