"""Whether large packets reach other nodes if small ones do.

A switch, tunnel or virtual network may silently drop packets above its own MTU. Connections then open, small
messages pass, and the first large one hangs, as does a training minutes after its start.

The kernel reports whether the other side has acknowledged what was sent: nobody needs to read it there.
"""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import sys
import termios
import time
from collections.abc import Hashable, Mapping
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)

# A lost packet is resent after 0.2, 0.6 and 1.4 s. Four losses are no accident, and it is tried twice.
_LIMIT_S = 3.0
_TRIES = 3
_CHECK_EVERY_S = 0.02
_TOGETHER = 256  # connections at the same time
_SMALL_BYTES = 64
_IP_MTU, _IPV6_MTU = 14, 24  # linux/in.h, linux/in6.h


def longest_s(places: int) -> float:
    """Return how long :func:`lost_above` may take for so many places."""
    return _TRIES * _LIMIT_S * (1 + places // _TOGETHER)


def lost_above(places: Mapping[_Key, tuple[str, int]]) -> dict[_Key, int]:
    """Return the places to which the largest packets get lost, with the size of these packets in bytes.

    Only places that acknowledge a small packet are included: for others, the size is not the problem.
    """
    found: dict[_Key, int] = {}
    keys = list(places)
    for start in range(0, len(keys), _TOGETHER):
        sent = _send({key: places[key] for key in keys[start : start + _TOGETHER]}, large=True)
        small = _send({key: places[key] for key, packet in sent.items() if packet.is_lost}, large=False)
        again = _send({key: places[key] for key, packet in small.items() if packet.arrived}, large=True)
        found |= {key: packet.mtu for key, packet in again.items() if packet.is_lost}
    return found


def _send(places: Mapping[_Key, tuple[str, int]], *, large: bool) -> dict[_Key, _Packet]:
    """Send one packet to each place, and wait until all are acknowledged or lost, or time is up."""
    packets = {key: _Packet(address, port, large=large) for key, (address, port) in places.items()}
    waiting = list(packets.values())
    deadline = time.monotonic() + _LIMIT_S
    while waiting and time.monotonic() < deadline:
        for packet in waiting:
            packet.check()
        waiting = [packet for packet in waiting if not packet.is_settled]
        if waiting:
            time.sleep(_CHECK_EVERY_S)
    for packet in packets.values():
        packet.close()
    return packets


class _Packet:
    """One packet on its own connection: the largest that the route claims to carry, or a small one.

    Once the connection is open, ``mtu`` is known and the packet has been sent.
    """

    def __init__(self, address: str, port: int, *, large: bool) -> None:
        self.mtu = 0
        self.arrived = False
        self._large = large
        self._broken = False
        self._ipv6 = ":" in address
        self._socket = socket.socket(socket.AF_INET6 if self._ipv6 else socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.connect_ex((address, port))
        self._watch = select.poll()
        self._watch.register(self._socket, select.POLLOUT)

    @property
    def is_settled(self) -> bool:
        """Whether its fate is known."""
        return self.arrived or self._broken

    @property
    def is_lost(self) -> bool:
        """Whether it was sent, and neither acknowledged nor answered by the end of the connection."""
        return self.mtu > 0 and not self.is_settled

    def check(self) -> None:
        """Send the packet once the connection is open, and check whether it was acknowledged."""
        try:
            events = dict(self._watch.poll(0)).get(self._socket.fileno(), 0)
            if self.mtu:
                # A reset means the peer closed with unread data, so everything arrived.
                self.arrived = bool(events & select.POLLERR) or self._unacknowledged() == 0
            elif events & (select.POLLERR | select.POLLHUP):
                self._broken = True
            elif events:
                self._send()
        except OSError:
            self._broken = True

    def close(self) -> None:
        """Reset the connection, so that nothing of it remains on either side."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def _send(self) -> None:
        level, option = (socket.IPPROTO_IPV6, _IPV6_MTU) if self._ipv6 else (socket.IPPROTO_IP, _IP_MTU)
        self.mtu = self._socket.getsockopt(level, option)
        most = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        self._socket.send(bytes(most if self._large else _SMALL_BYTES))

    def _unacknowledged(self) -> int:
        """Return how many bytes the other side has not acknowledged (SIOCOUTQ)."""
        answer = fcntl.ioctl(self._socket, termios.TIOCOUTQ, b"\0" * 4)
        return int.from_bytes(answer, sys.byteorder)
