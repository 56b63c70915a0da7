"""Programs on nodes, whose output is passed to a callback: their interface, and those on this node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from platform_launch.supervise.processes import shell_code
from platform_launch.text import Phrase

Feed = Callable[[bytes, bool], None]

BEAT_S = 5.0
MISSED_BEATS = 4
# Longer than a stall that a connection survives, so that output on its way is not lost. A pipe needs no wait.
REMOTE_QUIET_S = BEAT_S * (MISSED_BEATS + 1)
_LOCAL_QUIET_S = 5.0


class NodeUnreachableError(Exception):
    """A node cannot be reached, or was lost; the message has the step and the reason."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class NodeProgram(Protocol):
    """A program that runs on a node.

    ``done`` has its exit code as a shell would report it, or NodeUnreachableError if the connection was lost.
    """

    done: asyncio.Future[int]

    def send(self, data: bytes) -> None:
        """Write to its stdin."""

    def close(self) -> None:
        """Disconnect from it: its stdin ends."""

    def abort(self) -> None:
        """Disconnect from it at once, without its last output."""

    def throttle(self, slow: bool) -> None:
        """Pause reading its output, or resume."""


async def start_here(argv: Sequence[str], feed: Feed) -> NodeProgram:
    """Start a program on this node, in its own session. Raises OSError."""
    loop = asyncio.get_running_loop()
    _, local = await loop.subprocess_exec(lambda: _LocalProgram(feed), *argv, start_new_session=True)
    return local


class ProgramEnd:
    """Determines when a program is done: it has ended, and so has its output, or no output came for a while.

    Processes that a killed program left behind may keep its output open forever, so ``let_go`` is called
    after ``quiet_s`` without output. ``paused`` means that nothing is read for now.
    """

    def __init__(self, let_go: Callable[[], None], quiet_s: float) -> None:
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.paused = False
        self._let_go = let_go
        self._quiet_s = quiet_s
        self._code: int | None = None
        self._has_news = False

    def output_arrived(self) -> None:
        """Record that output arrived."""
        self._has_news = True

    def ended(self, code: int) -> None:
        """Record that the program has ended; its output may continue."""
        self._code = code
        self._has_news = True
        self._check()

    def closed(self, otherwise: Exception) -> None:
        """Record that no more output can arrive; ``otherwise`` is the result if the program still runs."""
        if self.done.done():
            return
        if self._code is None:
            self.done.set_exception(otherwise)
        else:
            self.done.set_result(self._code)

    def _check(self) -> None:
        if self.done.done() or self._code is None:
            return
        if self._has_news or self.paused:
            self._has_news = False
            asyncio.get_running_loop().call_later(self._quiet_s, self._check)
            return
        self.done.set_result(self._code)
        self._let_go()


class _LocalProgram(asyncio.SubprocessProtocol):
    """A program on this node."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._ending = ProgramEnd(lambda: self._process.close(), _LOCAL_QUIET_S)
        self.done = self._ending.done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._process = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        self._ending.output_arrived()
        self._feed(cast(bytes, data), fd == 2)

    def process_exited(self) -> None:
        self._ending.ended(shell_code(self._process.get_returncode() or 0))

    def connection_lost(self, exc: Exception | None) -> None:
        self._ending.closed(
            NodeUnreachableError(
                Phrase("its pipes were lost: {problem}", problem=str(exc or "") or Phrase("closed"))
            )
        )

    def send(self, data: bytes) -> None:
        pipe = cast(asyncio.WriteTransport, self._process.get_pipe_transport(0))
        if not pipe.is_closing():
            pipe.write(data)

    def close(self) -> None:
        pipe = self._process.get_pipe_transport(0)
        if pipe is not None:
            pipe.close()

    def abort(self) -> None:
        self._process.terminate()

    def throttle(self, slow: bool) -> None:
        self._ending.paused = slow
        self._ending.output_arrived()
        for fd in (1, 2):
            pipe = cast(asyncio.ReadTransport | None, self._process.get_pipe_transport(fd))
            if pipe is not None and not pipe.is_closing():
                pipe.pause_reading() if slow else pipe.resume_reading()
