"""TCP connections of a process whose packets nobody acknowledges, as the kernel counts them.

A firewall, a switch or a wrong MTU may let packets vanish without a reset. Both ends then wait in the same
collective, and no recorder tells them apart; the kernel alone knows that it sends the same bytes again.
"""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch.hostlist import bracketed

# Two in a row may be lost by chance; the third attempt comes 1.4 s after the first, and doubles from there.
_ATTEMPTS = 3
_RETRANSMITS = "01"  # the kind of the kernel's timer; others wait, or ask a peer whose window is full
_MOST = 8
_MOST_LINES = 100_000
_SOCKET = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True)
class UnheardConnection:
    """A connection whose peer is silent: addresses as ``HOST:PORT``, bytes sent and not acknowledged.

    ``attempts`` is how often they were sent again in a row.
    """

    local: str
    remote: str
    unacknowledged_bytes: int
    attempts: int


def unheard_connections(pid: int) -> tuple[UnheardConnection, ...]:
    """Return those of a process, the longest silent first; none where the kernel does not tell."""
    found = [one for name in ("tcp", "tcp6") for one in _silent(Path(f"/proc/{pid}/net/{name}"))]
    if not found:
        return ()
    mine = _sockets(pid)
    own = [connection for inode, connection in found if inode in mine]
    return tuple(sorted(own, key=lambda one: -one.attempts)[:_MOST])


def parse_connection(line: str) -> tuple[str, UnheardConnection] | None:
    """Read a line of /proc/PID/net/tcp: the socket's inode, and the connection if its peer is silent."""
    fields = line.split()
    try:
        local, remote, queues, timer, attempts, inode = (fields[at] for at in (1, 2, 4, 5, 6, 9))
        if timer[:2] != _RETRANSMITS or int(attempts, 16) < _ATTEMPTS:
            return None
        sent = int(queues.partition(":")[0], 16)
        return inode, UnheardConnection(_address(local), _address(remote), sent, int(attempts, 16))
    except (IndexError, ValueError):
        return None


def _silent(table: Path) -> list[tuple[str, UnheardConnection]]:
    try:
        lines = table.read_text().splitlines()[1:_MOST_LINES]
    except OSError:
        return []
    return [found for found in map(parse_connection, lines) if found is not None]


def _sockets(pid: int) -> set[str]:
    """Return the inodes of a process's sockets."""
    found = set()
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed just now
                if match := _SOCKET.fullmatch(str(descriptor.readlink())):
                    found.add(match[1])
    return found


def _address(text: str) -> str:
    """Read ``0100007F:1F90``, words of four bytes in the machine's order."""
    digits, _, port = text.partition(":")
    words = bytes.fromhex(digits)
    packed = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    host = socket.inet_ntop(family, packed).removeprefix("::ffff:")
    return f"{bracketed(host)}:{int(port, 16)}"
