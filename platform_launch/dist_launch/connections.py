"""Programs on the nodes of a cluster: over SSH connections that are kept, and on this node without SSH.

Only the host keys that the nodes joined with are trusted. The user's own SSH configuration is not read.
"""

from __future__ import annotations

import asyncio
import signal as signals
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import asyncssh

from platform_launch.dist_launch.cluster import ClusterMember
from platform_launch.dist_launch.programs import (
    BEAT_S,
    MISSED_BEATS,
    REMOTE_QUIET_S,
    Feed,
    NodeProgram,
    NodeUnreachableError,
    ProgramEnd,
    start_here,
)
from platform_launch.errors import InputError
from platform_launch.text import Phrase

_CONNECT_S = 10.0
# With OpenSSH's default, a post-quantum exchange, a handshake takes three to four times the processor time.
_EXCHANGES = ("curve25519-sha256", "curve25519-sha256@libssh.org", "ecdh-sha2-nistp256")
_CIPHERS = ("aes128-gcm@openssh.com", "chacha20-poly1305@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr")


class NodeConnections:
    """Opens a connection to a node when it is first needed and keeps it. ``key`` is rank 0's private key."""

    def __init__(self, key: Path) -> None:
        self._key = key
        self._keys: list[Any] | None = None
        self._open: dict[ClusterMember, asyncio.Task[asyncssh.SSHClientConnection]] = {}

    def load_key(self) -> None:
        """Read the private key. Raises InputError if it cannot be used."""
        if self._keys is not None:
            return
        try:
            self._keys = [asyncssh.load_keypairs(str(self._key))[0]]
        except (OSError, ValueError, asyncssh.Error) as error:
            raise InputError(
                Phrase(
                    "the private key {key} (--ssh-key) cannot be used: {problem}",
                    key=self._key,
                    problem=getattr(error, "strerror", None) or error,
                ),
                "name a private key without a passphrase, or leave --ssh-key out: rank 0 has its own",
            ) from error

    async def start(self, member: ClusterMember, command: str, feed: Feed, *, here: bool) -> NodeProgram:
        """Start a program. ``command`` is for the user's shell; ``here``: on this node, without SSH.

        ``feed(data, is_stderr)`` receives its output. Raises NodeUnreachableError.
        """
        if here:
            local: NodeProgram = await start_here(["/bin/sh", "-c", command], feed)
            return local
        connection = await self._connection(member)
        try:
            _, session = await connection.create_session(lambda: _SshProgram(feed), command, encoding=None)
        except (OSError, asyncssh.Error) as error:
            raise NodeUnreachableError(Phrase("no session: {problem}", problem=error)) from error
        return cast(_SshProgram, session)

    async def close(self) -> None:
        """Close every connection."""
        for task in self._open.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().abort()
            task.cancel()
        self._open.clear()

    async def _connection(self, member: ClusterMember) -> asyncssh.SSHClientConnection:
        """Return the connection to a node; concurrent callers share one attempt."""
        task = self._open.get(member)
        if task is not None and task.done() and (task.exception() or task.result().is_closed()):
            task = None
        if task is None:
            task = self._open[member] = asyncio.ensure_future(self._connect(member))
        return await asyncio.shield(task)

    async def _connect(self, member: ClusterMember) -> asyncssh.SSHClientConnection:
        try:
            self.load_key()
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
                    keepalive_interval=BEAT_S,
                    keepalive_count_max=MISSED_BEATS,
                ),
                _CONNECT_S,
            )
        except (OSError, ValueError, asyncssh.Error, asyncio.TimeoutError) as error:
            raise NodeUnreachableError(explain(error, member, self._key)) from error


class _SshProgram(asyncssh.SSHClientSession[bytes]):
    """A program on another node."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._ending = ProgramEnd(self.abort, REMOTE_QUIET_S)
        self.done = self._ending.done

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        self._ending.output_arrived()
        self._feed(data, datatype == asyncssh.EXTENDED_DATA_STDERR)

    def exit_status_received(self, status: int) -> None:
        self._ending.ended(status)

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self._ending.ended(128 + _number_of(signal))

    def connection_lost(self, exc: Exception | None) -> None:
        self._ending.closed(
            NodeUnreachableError(
                Phrase("the connection was lost: {problem}", problem=str(exc or "") or Phrase("closed"))
            )
        )

    def send(self, data: bytes) -> None:
        with suppress(OSError):  # BrokenPipeError: the program has ended
            self._channel.write(data)

    def close(self) -> None:
        with suppress(OSError):
            self._channel.write_eof()

    def abort(self) -> None:
        self._channel.abort()

    def throttle(self, slow: bool) -> None:
        self._ending.paused = slow
        self._ending.output_arrived()
        self._channel.pause_reading() if slow else self._channel.resume_reading()


def _number_of(name: str) -> int:
    """Return the number of a signal by its name in SSH (``TERM``); 0 if unknown."""
    return int(signals.Signals.__members__.get(f"SIG{name}", 0))


def explain(error: BaseException, member: ClusterMember, key: Path) -> str:
    """Return at which step a connection failed, and why."""
    where = f"{member.address}:{member.ssh_port}"
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return Phrase(
            (
                "the host key at {where} is not the one that this node joined with: it was "
                "recreated, or another machine answers at its address; its dist-launch wait must "
                "join again"
            ),
            where=where,
        )
    if isinstance(error, asyncssh.PermissionDenied):
        return Phrase(
            "{where} refused the key {key} for user {user}: it is not in authorized_keys there, or this "
            "server does not read that file",
            where=where,
            key=key,
            user=member.ssh_user,
        )
    if isinstance(error, ConnectionRefusedError):
        return Phrase(
            "nothing listens at {where}: the SSH server has stopped, or listens on another port", where=where
        )
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return Phrase(
            ("{where} does not answer within {limit:g} s: it is down, cut off, or behind a firewall"),
            where=where,
            limit=_CONNECT_S,
        )
    return Phrase("{where}: {problem}", where=where, problem=str(error) or type(error).__name__)
