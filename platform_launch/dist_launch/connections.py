"""Programs on the nodes of a cluster: over SSH connections that are kept, and on this node without SSH.

Host keys are those with which the nodes joined, and no other is trusted. The user's own SSH configuration is
not read.
"""

from __future__ import annotations

import asyncio
import signal as signals
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

import asyncssh

from platform_launch.dist_launch.cluster import ClusterMember

Feed = Callable[[bytes, bool], None]

_CONNECT_S = 10.0
_BEAT_S = 5.0
_MISSED_BEATS = 4
# Longer than a stall that a connection survives: what is still on its way must not be lost.
_QUIET_S = _BEAT_S * (_MISSED_BEATS + 1)
# With OpenSSH's default, a post-quantum exchange, a handshake takes three to four times the processor time.
_EXCHANGES = ("curve25519-sha256", "curve25519-sha256@libssh.org", "ecdh-sha2-nistp256")
_CIPHERS = ("aes128-gcm@openssh.com", "chacha20-poly1305@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr")


class NodeUnreachableError(Exception):
    """A node that cannot be reached, or was lost; the message says at which step and why."""


class NodeProgram(Protocol):
    """A program that runs on a node.

    ``done`` gives its exit code as a shell would, or UnreachableError when the connection was lost.
    """

    done: asyncio.Future[int]

    def send(self, data: bytes) -> None:
        """Write to its stdin."""

    def close(self) -> None:
        """Let go of it: its stdin ends."""

    def abort(self) -> None:
        """Let go of it at once, without its last words."""

    def pause(self) -> None:
        """Read no more output for now."""

    def resume(self) -> None:
        """Go on reading."""


class NodeConnections:
    """Opens a connection to a node when it is first needed and keeps it. ``key`` is rank 0's private key."""

    def __init__(self, key: Path) -> None:
        self._key = key
        self._keys: list[Any] | None = None
        self._open: dict[ClusterMember, asyncio.Task[asyncssh.SSHClientConnection]] = {}

    async def start(self, member: ClusterMember, command: str, feed: Feed, *, here: bool) -> NodeProgram:
        """Start a program. ``command`` is for the user's shell; ``here``: on this node, without SSH.

        ``feed(data, is_stderr)`` takes what it writes. Raises UnreachableError.
        """
        if here:
            loop = asyncio.get_running_loop()
            _, local = await loop.subprocess_exec(
                lambda: _LocalProgram(feed), "/bin/sh", "-c", command, start_new_session=True
            )
            return local
        connection = await self._connection(member)
        try:
            _, session = await connection.create_session(lambda: _SshProgram(feed), command, encoding=None)
        except (OSError, asyncssh.Error) as error:
            raise NodeUnreachableError(f"no session: {error}") from error
        return cast(_SshProgram, session)

    async def close(self) -> None:
        """Close every connection."""
        for task in self._open.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().abort()
            task.cancel()
        self._open.clear()

    async def _connection(self, member: ClusterMember) -> asyncssh.SSHClientConnection:
        """Return the connection to a node; several that ask at once share one try."""
        task = self._open.get(member)
        if task is not None and task.done() and (task.exception() or task.result().is_closed()):
            task = None
        if task is None:
            task = self._open[member] = asyncio.ensure_future(self._connect(member))
        return await asyncio.shield(task)

    async def _connect(self, member: ClusterMember) -> asyncssh.SSHClientConnection:
        try:
            if self._keys is None:
                self._keys = [asyncssh.load_keypairs(str(self._key))[0]]
            trusted = [asyncssh.import_public_key(member.host_key)]
            return await asyncio.wait_for(
                asyncssh.connect(
                    member.address,
                    member.ssh_port,
                    username=member.ssh_user,
                    known_hosts=(trusted, [], []),
                    client_keys=self._keys,
                    config=None,
                    agent_path=None,
                    preferred_auth="publickey",
                    compression_algs=None,
                    kex_algs=_EXCHANGES,
                    encryption_algs=_CIPHERS,
                    keepalive_interval=_BEAT_S,
                    keepalive_count_max=_MISSED_BEATS,
                ),
                _CONNECT_S,
            )
        except (OSError, ValueError, asyncssh.Error, asyncio.TimeoutError) as error:
            raise NodeUnreachableError(explain(error, member)) from error


class _ProgramEnd:
    """Tells when a program is done: it has ended, and so has its output, or nothing of it came for a while.

    What a program that was killed has left behind may hold its output for ever. ``let_go`` is called then;
    ``paused`` says that nothing is read for now.
    """

    def __init__(self, let_go: Callable[[], None]) -> None:
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.paused = False
        self._let_go = let_go
        self._code: int | None = None
        self._heard = False

    def heard(self) -> None:
        """Note that output came."""
        self._heard = True

    def ended(self, code: int) -> None:
        """Note that the program has ended; its output may go on."""
        self._code = code
        self._heard = True
        self._look()

    def closed(self, otherwise: Exception) -> None:
        """Note that no more output can come; ``otherwise`` is what that means while the program runs."""
        if self.done.done():
            return
        if self._code is None:
            self.done.set_exception(otherwise)
        else:
            self.done.set_result(self._code)

    def _look(self) -> None:
        if self.done.done() or self._code is None:
            return
        if self._heard or self.paused:
            self._heard = False
            asyncio.get_running_loop().call_later(_QUIET_S, self._look)
            return
        self.done.set_result(self._code)
        self._let_go()


class _LocalProgram(asyncio.SubprocessProtocol):
    """A program on this node."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._ending = _ProgramEnd(lambda: self._process.close())
        self.done = self._ending.done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._process = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        self._ending.heard()
        self._feed(cast(bytes, data), fd == 2)

    def process_exited(self) -> None:
        code = self._process.get_returncode() or 0
        self._ending.ended(code if code >= 0 else 128 - code)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ending.closed(NodeUnreachableError(f"its pipes were lost: {exc or 'closed'}"))

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

    def pause(self) -> None:
        self._ending.paused = True
        for pipe in self._pipes():
            pipe.pause_reading()

    def resume(self) -> None:
        self._ending.paused = False
        self._ending.heard()
        for pipe in self._pipes():
            pipe.resume_reading()

    def _pipes(self) -> list[asyncio.ReadTransport]:
        found = (self._process.get_pipe_transport(fd) for fd in (1, 2))
        return [
            cast(asyncio.ReadTransport, pipe) for pipe in found if pipe is not None and not pipe.is_closing()
        ]


class _SshProgram(asyncssh.SSHClientSession[bytes]):
    """A program on another node."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._ending = _ProgramEnd(self.abort)
        self.done = self._ending.done

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        self._ending.heard()
        self._feed(data, datatype == asyncssh.EXTENDED_DATA_STDERR)

    def exit_status_received(self, status: int) -> None:
        self._ending.ended(status)

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self._ending.ended(128 + _number_of(signal))

    def connection_lost(self, exc: Exception | None) -> None:
        self._ending.closed(NodeUnreachableError(f"the connection was lost: {exc or 'closed'}"))

    def send(self, data: bytes) -> None:
        with suppress(OSError):  # BrokenPipeError: the program has ended
            self._channel.write(data)

    def close(self) -> None:
        with suppress(OSError):
            self._channel.write_eof()

    def abort(self) -> None:
        self._channel.abort()

    def pause(self) -> None:
        self._ending.paused = True
        self._channel.pause_reading()

    def resume(self) -> None:
        self._ending.paused = False
        self._ending.heard()
        self._channel.resume_reading()


def _number_of(name: str) -> int:
    """Return the number of a signal that SSH names (``TERM``); 0 for one that is not known."""
    return int(signals.Signals.__members__.get(f"SIG{name}", 0))


def explain(error: BaseException, member: ClusterMember) -> str:
    """Say at which step a connection failed, and why."""
    where = f"{member.address}:{member.ssh_port}"
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return (
            f"the host key at {where} is not the one that this node joined with: it was made anew, or "
            "something else answers at its address; its dist-launch wait must join again"
        )
    if isinstance(error, asyncssh.PermissionDenied):
        return (
            f"{where} refuses rank 0's key for user {member.ssh_user}: it is no longer in authorized_keys, "
            "or this server does not read that file"
        )
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens at {where}: its SSH server has ended, or listens on another port"
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return f"{where} does not answer within {_CONNECT_S:g} s: cut off, down, or behind a firewall"
    return f"{where}: {error or type(error).__name__}"
