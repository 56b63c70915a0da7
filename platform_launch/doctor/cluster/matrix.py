"""Who reaches whom: every node listens, and every other one tries to connect."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Thread

from platform_launch.hardware import ports

_TOGETHER = 256  # connections tried at the same time


@contextmanager
def listening(port: int = 0) -> Iterator[int]:
    """Accept and drop connections on a port of all addresses (0: one that is free); gives its number.

    Raises OSError when that cannot be done.
    """
    server = ports.listen(port, backlog=1024)
    Thread(target=_drop, args=(server,), name="listening", daemon=True).start()
    try:
        yield server.getsockname()[1]
    finally:
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)  # wakes accept()
        server.close()


def _drop(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            # The other side closes first: the port must not be left in TIME_WAIT here.
            Thread(target=_await_end, args=(connection,), daemon=True).start()


def _await_end(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        connection.settimeout(5)
        connection.recv(1)


def unreachable(places: Mapping[int, tuple[str, int]], limit_s: float) -> dict[int, str]:
    """Try to connect to each place (address and port) and return the reason for each that fails."""
    ranks = sorted(places)
    found: dict[int, str] = {}
    for start in range(0, len(ranks), _TOGETHER):
        found |= _try_all({rank: places[rank] for rank in ranks[start : start + _TOGETHER]}, limit_s)
    return found


def _try_all(places: Mapping[int, tuple[str, int]], limit_s: float) -> dict[int, str]:
    failed: dict[int, str] = {}
    waiting: dict[int, tuple[int, socket.socket]] = {}
    watch = select.poll()
    for rank, place in places.items():
        try:
            probe = _begin(place)
        except (OSError, UnicodeError) as error:
            failed[rank] = _said(place, getattr(error, "strerror", None) or str(error))
            continue
        waiting[probe.fileno()] = (rank, probe)
        watch.register(probe, select.POLLOUT)
    deadline = time.monotonic() + limit_s
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        for descriptor, _ in watch.poll(left_s * 1000):
            rank, probe = waiting.pop(descriptor)
            watch.unregister(descriptor)
            code = probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            probe.close()
            if code:
                failed[rank] = _said(places[rank], os.strerror(code))
    for rank, probe in waiting.values():
        probe.close()
        failed[rank] = _said(places[rank], f"no answer within {limit_s:g} s")
    return failed


def _begin(place: tuple[str, int]) -> socket.socket:
    """Begin to connect, without waiting. What a node published is an address; the master has a name."""
    family, _, _, _, target = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0]
    probe = socket.socket(family, socket.SOCK_STREAM)
    probe.setblocking(False)
    code = probe.connect_ex(target)
    if code not in (0, errno.EINPROGRESS):
        probe.close()
        raise OSError(code, os.strerror(code))
    return probe


def _said(place: tuple[str, int], reason: str) -> str:
    address, port = place
    return f"{f'[{address}]' if ':' in address else address}:{port}: {reason}"
