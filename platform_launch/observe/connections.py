"""TCP connections of a process, as the kernel counts them: bytes moved, packets that were not acknowledged.

A firewall, a switch or a wrong MTU may drop packets without a reset. Both ends then wait in the same
collective, and recorders show no difference. Only the kernel knows that it retransmits.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch.hostlist import bracketed

# Two losses in a row may be chance. The third attempt is 1.4 s after the first; each further pause doubles.
_ATTEMPTS = 3
_RETRANSMITS = "01"  # the retransmission timer; others are for keepalives and full windows
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
    """Return those of a process, those silent for longest first; none if the kernel hides them."""
    found = [one for name in ("tcp", "tcp6") for one in _silent(Path(f"/proc/{pid}/net/{name}"))]
    if not found:
        return ()
    mine = socket_inodes(pid)
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


def peer_of(process: Path, link: str) -> str:
    """Return the address at the other end of a TCP socket, ``HOST:PORT``; otherwise the link unchanged.

    ``process`` is /proc/PID; ``link`` is the target of one of its descriptors: ``socket:[INODE]``.
    """
    found = _SOCKET.fullmatch(link)
    for name in ("tcp", "tcp6"):
        for line in _lines(process / "net" / name):
            fields = line.split()
            with suppress(IndexError, ValueError):
                if found and fields[9] == found[1]:
                    return _address(fields[2])
    return link


def socket_inodes(pid: int) -> set[str]:
    """Return the inodes of a process's sockets."""
    found = set()
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed just now
                if match := _SOCKET.fullmatch(str(descriptor.readlink())):
                    found.add(match[1])
    return found


# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h, linux/tcp.h.
_SOCK_DIAG, _BY_FAMILY, _DUMP, _ERROR, _DONE = 4, 20, 0x301, 2, 3
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_MESSAGE_BYTES, _INODE_AT = 72, 68  # struct inet_diag_msg
_INFO = 2  # INET_DIAG_INFO, a struct tcp_info
_BYTES_ACKED_AT = 120  # … followed by bytes_received
_DIAG_LIMIT_S = 1.0


def moved_by_sockets(inodes: Collection[str]) -> dict[str, int]:
    """Return the bytes that TCP sockets have sent and received so far; empty if the kernel hides them."""
    moved: dict[str, int] = {}
    with suppress(OSError, struct.error):
        for family in (socket.AF_INET, socket.AF_INET6):
            moved |= {inode: count for inode, count in _diagnosed(family) if inode in inodes}
    return moved


def _diagnosed(family: int) -> list[tuple[str, int]]:
    """Query the kernel for all TCP sockets of a family, with their counters."""
    body = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, 0xFFFFFFFF)
    request = _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _DUMP, 1, 0) + body
    found: list[tuple[str, int]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
        netlink.settimeout(_DIAG_LIMIT_S)
        netlink.send(request)
        while len(found) < _MOST_LINES:
            data = netlink.recv(1 << 18)
            while data:
                length, kind, *_ = _HEADER.unpack_from(data)
                if kind in (_ERROR, _DONE) or length < _HEADER.size:
                    return found
                found += _moved_by(data[_HEADER.size : length])
                data = data[(length + 3) & ~3 :]
    return found


def _moved_by(message: bytes) -> list[tuple[str, int]]:
    """Read one socket's counters out of an inet_diag_msg and its attributes."""
    (inode,) = struct.unpack_from("=I", message, _INODE_AT)
    at = _MESSAGE_BYTES
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind == _INFO and length >= _ATTRIBUTE.size + _BYTES_ACKED_AT + 16:
            return [(str(inode), sum(struct.unpack_from("=QQ", message, at + 4 + _BYTES_ACKED_AT)))]
        at += max(4, (length + 3) & ~3)
    return []


def _silent(table: Path) -> list[tuple[str, UnheardConnection]]:
    return [found for found in map(parse_connection, _lines(table)) if found is not None]


def _lines(table: Path) -> list[str]:
    try:
        return table.read_text().splitlines()[1:_MOST_LINES]
    except OSError:
        return []


def _address(text: str) -> str:
    """Read ``0100007F:1F90``, words of four bytes in the machine's order."""
    digits, _, port = text.partition(":")
    words = bytes.fromhex(digits)
    packed = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    host = socket.inet_ntop(family, packed).removeprefix("::ffff:")
    return f"{bracketed(host)}:{int(port, 16)}"
