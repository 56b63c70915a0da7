"""Node 0's connections: identifies callers and transports lines. Runs in the event loop's thread.

Callers that have not joined are limited in number, time and bytes.
"""

from __future__ import annotations

import asyncio
import fcntl
import hmac
import os
import socket
import sys
import termios
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Event

from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.lines import (
    SIGNATURE_BYTES,
    LineReader,
    Seal,
    UnauthenticatedError,
    longest,
    read_line,
)
from platform_launch.rendezvous.loop import EventLoop
from platform_launch.rendezvous.messages import InvalidMessageError, Message, decode, encode
from platform_launch.rendezvous.protocol import (
    Beat,
    Fetched,
    Hello,
    Join,
    JoinNotice,
    Leave,
    Publish,
    RejectionKind,
    Welcome,
)
from platform_launch.rendezvous.purpose import Purpose

_JOIN_LIMIT_S = 5.0
_FAREWELL_S = 15.0
# Callers that have not joined yet, in addition to one per node.
_MOST_CALLERS = 256
_HELLO_START = b'["Hello",{'
# Sent to a node and not yet read there. Beyond that, the node must connect again.
_MOST_UNREAD_BYTES = 16 * 2**20
# Received from a node and not yet handled by the coordinator.
_MOST_WAITING_BYTES = 8 * 2**20
_PAUSE_S = 0.05


def heartbeat_s(nnodes: int) -> float:
    """Return the seconds between two heartbeats: 0.5, up to 1 for a thousand nodes."""
    return min(0.5 + nnodes / 2000, 1.0)


def is_acknowledged(writer: asyncio.StreamWriter) -> bool:
    """Return whether the kernel of the other side has acknowledged everything that was sent (SIOCOUTQ).

    It also does so for a stopped process.
    """
    try:
        answer = fcntl.ioctl(writer.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0" * 4)
    except (OSError, ValueError):
        return False
    return not int.from_bytes(answer, sys.byteorder)


@dataclass(eq=False)
class Peer:
    """A node that has joined: one membership, over consecutive connections.

    ``count`` is that of its last heartbeat. ``closed_at`` is when its connection closed without a Leave (None
    while it is open), ``ended_at`` the same if it closed in an orderly way, as when a process exits.
    ``offset_s`` is its clock minus that of this node, with a maximum error of ``error_s``; None: unknown.
    ``waiting_bytes`` is the size of its messages that are not handled yet.
    """

    number: int
    join: Join
    session: bytes
    count: int = 0
    first_count: int = -1
    left: bool = False
    closed_at: float | None = None
    ended_at: float | None = None
    rejected_at: float | None = None
    offset_s: float = 0.0
    error_s: float | None = None
    waiting_bytes: int = 0
    machine_answers: bool = True
    values: dict[type[Message], Message] = field(default_factory=dict)
    writer: asyncio.StreamWriter | None = None
    seal: Seal | None = None
    dirty: set[str] = field(default_factory=set)
    seated: bool = False
    beat: Beat | None = None
    beat_at: float = 0.0


@dataclass(frozen=True)
class Joined:
    """A node has joined; ``resumed``: again, after its connection broke."""

    peer: Peer
    resumed: bool = False


@dataclass(frozen=True)
class Received:
    """A message of a node."""

    peer: Peer
    message: Message
    size: int


@dataclass(frozen=True)
class Misfit:
    """A caller that cannot take part, by its first line."""

    hello: Hello
    kind: RejectionKind


@dataclass(frozen=True)
class OtherLead:
    """The node 0 of another job, which needs the same ports, probed this rendezvous."""

    hello: Hello


@dataclass(frozen=True)
class Unreadable:
    """A caller or a node sent something that is not a message."""

    address: str
    problem: str
    peer: Peer | None = None


ServerEvent = Joined | Received | Misfit | OtherLead | Unreadable


class Server:
    """Serves node 0's connections. ``events`` queues what happens, and sets ``happened``.

    The coordinator must increase ``steps`` as long as it works. ``welcome`` is sent to every caller, with its
    own nonce and proof.
    """

    def __init__(
        self,
        loop: EventLoop,
        listeners: Sequence[socket.socket],
        purpose: Purpose,
        welcome: Welcome,
        secret: Secret | None,
    ) -> None:
        self.events: SimpleQueue[ServerEvent] = SimpleQueue()
        self.happened = Event()
        self.steps = 0
        self._loop = loop
        self._purpose = purpose
        self._welcome = welcome
        self._secret = secret
        self._peers: dict[int, Peer] = {}
        self._by_session: dict[bytes, Peer] = {}
        self._callers: Counter[str] = Counter()
        self._most_callers = welcome.nnodes + _MOST_CALLERS
        self._most_callers_of_one = welcome.nnodes + _MOST_CALLERS // 4
        self._states: dict[str, bytes] = {}
        self._beats = self._joined = 0
        self._servers: list[asyncio.Server] = []
        self._closed = False
        # The loop has only weak references to tasks, and none to a connection that does not read at present.
        self._tasks: set[asyncio.Task[None]] = set()
        loop.call(self._open(listeners), 60.0)

    # From any thread.

    def send(self, peer: Peer, message: Message) -> None:
        """Send a message to a node."""
        self._loop.post(self._send, peer, encode(message))

    def publish(self, body: Message) -> None:
        """Send a value to all members, also to later ones. It replaces the last one of its kind."""
        self._loop.post(self._publish, type(body).__name__, encode(Publish(body)))

    def notify(self, peer: Peer, notice: JoinNotice) -> None:
        """Send a node its JoinNotice; a rejected node is disconnected."""
        self._loop.post(self._notify, peer, notice)

    def forget(self, peer: Peer) -> None:
        """Drop a node that no longer takes part."""
        self._loop.post(self._forget, peer)

    def close(self) -> None:
        """Close all connections."""
        with suppress(Exception):
            self._loop.call(self._close(), 2.0)

    # In the thread of the loop.

    async def _open(self, listeners: Sequence[socket.socket]) -> None:
        for listener in listeners:
            # Connections inherit it. With Nagle's algorithm, the second of two short lines waits for 40 ms.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._servers.append(await asyncio.start_server(self._serve, sock=listener, backlog=4096))
        task = asyncio.ensure_future(self._beat())
        self._tasks.add(task)

    async def _close(self) -> None:
        self._closed = True
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        for peer in self._peers.values():
            if peer.writer is not None:
                peer.writer.close()

    async def _serve(self, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        address = str((writer.get_extra_info("peername") or ("?",))[0])
        peer = None
        try:
            if (
                self._callers.total() >= self._most_callers
                or self._callers[address] >= self._most_callers_of_one
            ):
                return
            self._callers[address] += 1
            try:
                reader = LineReader(stream)
                peer = await asyncio.wait_for(self._greet(reader, writer), _JOIN_LIMIT_S)
            finally:
                self._callers[address] -= 1
                if not self._callers[address]:
                    del self._callers[address]
            if peer is not None:
                await self._listen(peer, reader)
        except InvalidMessageError as error:
            self._report(Unreadable(address, str(error), peer))
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            pass
        except Exception as error:  # a fault of ours: the node connects again
            self._loop.record(error)
        finally:
            if peer is not None and peer.writer is writer:
                peer.writer, peer.closed_at = None, time.monotonic()
            with suppress(Exception):
                writer.close()

    async def _greet(self, reader: LineReader, writer: asyncio.StreamWriter) -> Peer | None:
        """Exchange first lines; return the node that joined, None if the caller does not or may not join."""
        line = await reader.line(Hello.most_bytes, _HELLO_START)
        if not line:
            return None
        hello = decode(line, Hello)
        welcome = replace(self._welcome, nonce=os.urandom(16).hex())
        seal = Seal(self._secret, line, welcome, node=False)
        writer.write(encode(replace(welcome, proof=seal.proof)) + b"\n")
        if hello.purpose != welcome.purpose or hello.mark != welcome.mark or _other_job(hello, welcome):
            await _closed(reader)  # the caller reads the reason and disconnects
            return None
        if hello.sealed != (self._secret is not None):
            missing = RejectionKind.COORDINATOR_WITHOUT_SECRET if hello.sealed else RejectionKind.NO_SECRET
            self._report(Misfit(hello, missing))
            return None
        line = await reader.line(Message.most_bytes + SIGNATURE_BYTES)
        if not line:
            return None
        try:
            data = seal.open(line)
        except UnauthenticatedError:
            self._report(Misfit(hello, RejectionKind.OTHER_SECRET))
            return None
        if hello.protocol != welcome.protocol:
            self._report(Misfit(hello, RejectionKind.OTHER_PROTOCOL))
            return None
        if hello.peeks:
            if hello.node_rank == 0 and hello.job != welcome.job:
                self._report(OtherLead(hello))
            for state in self._states.values():
                writer.write(seal.close(state))
            writer.write(seal.close(encode(Leave())))
            await _closed(reader)
            return None
        return self._admit(read_line(data, self._purpose, Join), writer, seal)

    def _admit(self, join: Join, writer: asyncio.StreamWriter, seal: Seal) -> Peer | None:
        session = hmac.digest(b"session", join.session.encode(), "sha256")  # looked up in constant time
        peer = self._by_session.get(session)
        if peer is not None and (join.connection <= peer.join.connection or peer.left):
            return None  # an older connection of a node that has a newer one
        if peer is None:
            self._joined += 1
            peer = self._by_session[session] = Peer(self._joined, join, session)
            self._peers[peer.number] = peer
            self._report(Joined(peer))
        else:
            old, peer.join = peer.writer, join
            if old is not None:
                old.transport.abort()
            self._report(Joined(peer, resumed=True))
        peer.writer, peer.seal = writer, seal
        peer.closed_at = peer.ended_at = None
        return peer

    async def _listen(self, peer: Peer, reader: LineReader) -> None:
        most = longest(self._purpose) + SIGNATURE_BYTES
        seal, writer = peer.seal, peer.writer
        assert seal is not None
        while peer.writer is writer:
            line = await reader.line(most)
            if not line:
                peer.ended_at = time.monotonic() if peer.writer is writer else peer.ended_at
                return
            message = read_line(seal.open(line), self._purpose, Message)
            if isinstance(message, Beat):
                peer.first_count = message.count if peer.first_count < 0 else peer.first_count
                peer.count = max(peer.count, message.count)
                peer.beat, peer.beat_at = message, time.monotonic()
                peer.offset_s, peer.error_s = message.offset_s, message.error_s
                if message.error_s is None:  # it knows nothing of our clock yet
                    self._send_beat(peer)
            elif isinstance(message, Leave):
                peer.left = True
                self.happened.set()
                return
            else:
                peer.waiting_bytes += len(line)
                self._report(Received(peer, message, len(line)))
                while peer.waiting_bytes > _MOST_WAITING_BYTES:
                    await asyncio.sleep(_PAUSE_S)

    def _report(self, event: ServerEvent) -> None:
        self.events.put(event)
        self.happened.set()

    def _send(self, peer: Peer, data: bytes) -> bool:
        writer = peer.writer
        if writer is None or peer.seal is None or writer.transport.is_closing():
            return False
        if writer.transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            writer.transport.abort()  # it resumes, and gets the latest state
            return False
        writer.write(peer.seal.close(data))
        return True

    def _publish(self, kind: str, data: bytes) -> None:
        self._states[kind] = data
        for peer in self._peers.values():
            if peer.seated:
                peer.dirty.add(kind)
                self._send_states(peer)

    def _send_states(self, peer: Peer) -> None:
        """Send what is new; if earlier lines are still unread, the newest value goes with the next beat."""
        if peer.writer is None or peer.writer.transport.get_write_buffer_size():
            return
        for kind in sorted(peer.dirty):
            self._send(peer, self._states[kind])
        peer.dirty.clear()

    def _notify(self, peer: Peer, notice: JoinNotice) -> None:
        self._send(peer, encode(notice))
        if notice.rejection is not None:
            peer.rejected_at, peer.seated = time.monotonic(), False
            return
        peer.seated = True
        peer.dirty = set(self._states)
        self._send_states(peer)

    def _forget(self, peer: Peer) -> None:
        self._peers.pop(peer.number, None)
        self._by_session.pop(peer.session, None)
        if peer.writer is not None:
            peer.writer.close()

    async def _beat(self) -> None:
        """Send heartbeats as long as the coordinator takes steps."""
        pause_s = heartbeat_s(self._welcome.nnodes)
        known = -1
        while not self._closed:
            if self.steps != known:
                known = self.steps
                self._beats += 1
            for peer in list(self._peers.values()):
                if peer.rejected_at is not None and time.monotonic() - peer.rejected_at > _FAREWELL_S:
                    self._forget(peer)
                    continue
                self._send_beat(peer)
                self._send_states(peer)
            await asyncio.sleep(pause_s)

    def _send_beat(self, peer: Peer) -> None:
        if peer.writer is not None:
            peer.machine_answers = is_acknowledged(peer.writer)
        theirs = peer.beat
        echo_s, held_s = (theirs.sent_s, time.monotonic() - peer.beat_at) if theirs else (0.0, 0.0)
        self._send(peer, encode(Beat(self._beats, time.time(), echo_s, held_s)))


async def _closed(reader: LineReader) -> None:
    with suppress(InvalidMessageError):
        await reader.line(0)


def _other_job(hello: Hello, welcome: Welcome) -> bool:
    return bool(hello.job_id and welcome.job_id and hello.job_id != welcome.job_id)


__all__ = [
    "Fetched",
    "Joined",
    "Misfit",
    "OtherLead",
    "Peer",
    "Received",
    "Server",
    "Unreadable",
    "heartbeat_s",
]
