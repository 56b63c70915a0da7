"""A node's connection to node 0, which resumes automatically. Runs in the event loop's thread."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue

from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.lines import LineReader, Seal, UnauthenticatedError, read_line
from platform_launch.rendezvous.liveness import SilenceClock
from platform_launch.rendezvous.loop import ConnectionLostError, EventLoop
from platform_launch.rendezvous.messages import InvalidMessageError, Message, decode, encode
from platform_launch.rendezvous.protocol import Beat, Hello, Join, Leave, Publish, Welcome
from platform_launch.rendezvous.purpose import Purpose
from platform_launch.rendezvous.reach import ReachStep, reach_step
from platform_launch.rendezvous.server import heartbeat_s, is_acknowledged
from platform_launch.text import Phrase

# To connect, and for the answer to a first line.
CONNECT_LIMIT_S = 3.0
# An answer takes milliseconds. After this long, a new connection is tried: after packet loss, TCP may wait on
# the old one for as long again as the loss lasted.
_ANSWER_LIMIT_S = 10.0
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.05, 2.0
_WELCOME_START = b'["Welcome",{'
_MOST_LINE_BYTES = 64 * 2**20
_MOST_UNSENT_BYTES = 16 * 2**20
# Older clock offsets are discarded: clocks drift.
_CLOCK_WINDOW_S = 300.0


@dataclass(frozen=True)
class Unopened:
    """Why a port led to no rendezvous: ``step`` is what failed, ``answer`` what answered instead."""

    port: int
    step: ReachStep
    answer: str = ""


@dataclass(eq=False)
class Opened:
    """A connection after the exchange of the first lines.

    ``trusted``: node 0 has this node's secret, or both have none.
    """

    address: str
    port: int
    reader: LineReader
    writer: asyncio.StreamWriter
    seal: Seal
    hello: Hello
    welcome: Welcome
    trusted: bool


async def open_all(
    address: str, ports: Sequence[int], hello: Hello, secret: Secret | None
) -> list[Opened | Unopened]:
    """Try all ports of an address at the same time; return the results in the same order."""
    return list(await asyncio.gather(*(open_one(address, port, hello, secret) for port in ports)))


async def open_one(address: str, port: int, hello: Hello, secret: Secret | None) -> Opened | Unopened:
    """Connect and exchange the first lines."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # asyncio turns Nagle's algorithm off only if the protocol is given.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await asyncio.wait_for(loop.sock_connect(made, (address, port)), CONNECT_LIMIT_S)
    except asyncio.TimeoutError:
        made.close()
        return Unopened(port, ReachStep.SILENCE)
    except OSError as error:
        made.close()
        return Unopened(port, reach_step(error.errno or errno.EADDRNOTAVAIL))
    stream, writer = await asyncio.open_connection(sock=made)
    try:
        return await asyncio.wait_for(_greet(address, port, stream, writer, hello, secret), CONNECT_LIMIT_S)
    except asyncio.TimeoutError:
        answer: str = Phrase("no answer within the limit")
    except (OSError, InvalidMessageError) as error:
        answer = error.args[0] if isinstance(error, InvalidMessageError) else str(error)
    writer.close()
    return Unopened(port, ReachStep.OPEN, answer)


async def _greet(
    address: str,
    port: int,
    stream: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    hello: Hello,
    secret: Secret | None,
) -> Opened:
    hello = replace(hello, nonce=os.urandom(16).hex())
    line = encode(hello)
    writer.write(line + b"\n")
    reader = LineReader(stream)
    data = await reader.line(Welcome.most_bytes, _WELCOME_START)
    if not data:
        raise InvalidMessageError(Phrase("the connection was closed"))
    welcome = decode(data, Welcome)
    seal = Seal(secret, line, welcome, node=True)
    return Opened(address, port, reader, writer, seal, hello, welcome, welcome.proof == seal.proof)


async def peek(opened: Opened, purpose: Purpose) -> list[Message]:
    """Return what the coordinator has published. ``hello.peeks`` is set; closes the connection."""
    found: list[Message] = []

    async def read() -> None:
        opened.writer.write(opened.seal.close(encode(Leave())))
        while True:
            line = await opened.reader.line(_MOST_LINE_BYTES)
            message = read_line(opened.seal.open(line), purpose, Message) if line else Leave()
            if not isinstance(message, Publish):
                return
            found.append(message.body)

    try:
        await asyncio.wait_for(read(), CONNECT_LIMIT_S)
    except (OSError, InvalidMessageError, asyncio.TimeoutError):
        found.clear()
    opened.writer.close()
    return found


async def hand_in(opened: Opened) -> None:
    """Report to node 0 that this node cannot take part, and close the connection."""
    with suppress(OSError):
        opened.writer.write(opened.seal.close(encode(Leave())))
        await opened.writer.drain()
    opened.writer.close()


class CoordinatorReplaced:
    """Another coordinator answers at the address of this one."""


class Client:
    """Joins over a connection, and keeps or replaces it. ``events`` queues the messages of node 0.

    ``coordinator_count`` is that of its last heartbeat. ``refused_since`` is when node 0's port was first
    found closed; None if it is open or unknown. ``ended_at`` is when the connection was closed in an orderly
    way, as when node 0's process exits; None while it is open, or if it broke. ``offset_s`` is this node's
    clock minus that of node 0, with a maximum error of ``error_s``; None: unknown. ``wake()`` is called in
    the loop's thread for each event.
    """

    def __init__(
        self,
        loop: EventLoop,
        opened: Opened,
        purpose: Purpose,
        secret: Secret | None,
        join: Join,
        next_connection: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._next_connection = next_connection
        self._wake = wake
        self.events: SimpleQueue[Message | CoordinatorReplaced] = SimpleQueue()
        self.coordinator_count = 0
        self.refused_since: float | None = None
        self.ended_at: float | None = None
        self.machine_answers = True
        self.offset_s = 0.0
        self.error_s: float | None = None
        self._clock_at = 0.0
        self._loop = loop
        self._purpose = purpose
        self._secret = secret
        self._join = join
        self._first = self._opened = opened
        self._connected = False
        self._count = 0
        self._published: dict[str, bytes] = {}
        self._requests: dict[int, bytes] = {}
        self._held = False
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        loop.post(self._begin)

    # From any thread.

    def send(self, message: Message) -> None:
        """Send a message; it is lost if the connection is broken."""
        self._loop.post(self._send, encode(message))

    def publish(self, body: Message) -> None:
        """Send a value, and again after the connection broke."""
        data = encode(Publish(body))
        self._loop.post(self._keep_and_send, type(body).__name__, data)

    def leave(self) -> None:
        """Leave the rendezvous for good, and disconnect."""
        with suppress(ConnectionLostError):
            self._loop.call(self._leave(), 2.0)

    def close(self) -> None:
        """Disconnect without leaving."""
        self._loop.post(self._shut)

    def hold(self, held: bool) -> None:
        """Send no heartbeats while ``held``, like a stopped launcher. For tests."""
        self._held = held

    # In the thread of the loop.

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        opened: Opened | None = self._first
        while opened is not None and not self._closed:
            self._opened, self._connected = opened, True
            self.refused_since = self.ended_at = None
            self._write(encode(self._join))
            for data in self._published.values():
                self._write(data)
            beating = asyncio.ensure_future(self._beat())
            try:
                await self._listen(opened)
            except Exception as error:
                if not isinstance(error, (OSError, InvalidMessageError)):
                    self._loop.record(error)  # a bug here, which a new connection may not hit
                reset(opened.writer)
            finally:
                beating.cancel()
                self._connected = False
                opened.writer.close()
            if not self._closed:
                opened = await self._reopen()
        if not self._closed:
            self.events.put(CoordinatorReplaced())
            self._wake()

    async def _listen(self, opened: Opened) -> None:
        """Read until the connection breaks, or nothing was received for too long."""
        silence = SilenceClock(time.monotonic())
        reading = asyncio.ensure_future(opened.reader.line(_MOST_LINE_BYTES))
        try:
            while not self._closed:
                await asyncio.wait((reading,), timeout=1.0)
                now = time.monotonic()
                if not reading.done():
                    if silence.observe(now) >= _ANSWER_LIMIT_S:
                        reset(opened.writer)
                        return
                    continue
                silence.reset(now)
                line = reading.result()
                if not line:
                    self.ended_at = now
                    return
                reading = asyncio.ensure_future(opened.reader.line(_MOST_LINE_BYTES))
                message = read_line(opened.seal.open(line), self._purpose, Message)
                if isinstance(message, Beat):
                    self._on_beat(message, now)
                else:
                    self.events.put(message)
                    self._wake()
        finally:
            reading.cancel()

    def _on_beat(self, beat: Beat, now: float) -> None:
        """Handle a heartbeat; the round trip that it completes bounds the clock offset."""
        self.coordinator_count = max(self.coordinator_count, beat.count)
        if not beat.echo_s:
            return
        local_s = time.time()
        round_trip_s = local_s - beat.echo_s - beat.held_s
        if round_trip_s < 0:  # a clock was set in the meantime
            return
        error_s = round_trip_s / 2
        if self.error_s is None or error_s <= self.error_s or now - self._clock_at > _CLOCK_WINDOW_S:
            first = self.error_s is None
            self.offset_s, self.error_s = local_s - error_s - beat.sent_s, error_s
            self._clock_at = now
            if first:  # node 0 compares clocks before the start
                self._send_beat()

    async def _beat(self) -> None:
        pause_s = heartbeat_s(self._first.welcome.nnodes)
        while True:
            if not self._held:
                self._send_beat()
            await asyncio.sleep(pause_s)

    def _send_beat(self) -> None:
        self._count += 1
        self.machine_answers = is_acknowledged(self._opened.writer)
        self._write(encode(Beat(self._count, time.time(), offset_s=self.offset_s, error_s=self.error_s)))

    async def _reopen(self) -> Opened | None:
        """Connect again, however long it takes; None if another coordinator answers there."""
        first, pause_s = self._first, _FIRST_PAUSE_S
        while not self._closed:
            await asyncio.sleep(pause_s * random.uniform(0.7, 1.3))  # noqa: S311 - only spreads
            pause_s = min(pause_s * 2, _MOST_PAUSE_S)
            if self._held:
                continue
            found = await open_one(first.address, first.port, first.hello, self._secret)
            if isinstance(found, Unopened):
                refused = found.step is ReachStep.REFUSED
                self.refused_since = (self.refused_since or time.monotonic()) if refused else None
                self.machine_answers = found.step is ReachStep.OPEN
                if self.machine_answers:  # node 0 was stopped: it answers when it continues
                    pause_s = _FIRST_PAUSE_S
                continue
            if found.trusted and found.welcome.round == first.welcome.round:
                self._join = replace(self._join, connection=self._next_connection())
                return found
            found.writer.close()
            if found.trusted and found.welcome.purpose == first.welcome.purpose:
                return None
        return None

    def _keep_and_send(self, kind: str, data: bytes) -> None:
        self._published[kind] = data
        self._send(data)

    def _send(self, data: bytes) -> None:
        if self._connected:
            self._write(data)

    def _write(self, data: bytes) -> None:
        writer = self._opened.writer
        if writer.transport.is_closing():
            return
        if writer.transport.get_write_buffer_size() > _MOST_UNSENT_BYTES:
            writer.transport.abort()
            return
        writer.write(self._opened.seal.close(data))

    async def _leave(self) -> None:
        self._closed = True
        if self._connected:
            self._write(encode(Leave()))
            with suppress(OSError):
                await self._opened.writer.drain()
        self._shut()

    def _shut(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        self._opened.writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """Reset a connection: an orderly close would mean that this process exits."""
    with suppress(OSError):
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


__all__ = [
    "Client",
    "CoordinatorReplaced",
    "Opened",
    "ReachStep",
    "UnauthenticatedError",
    "Unopened",
    "open_all",
    "peek",
]
