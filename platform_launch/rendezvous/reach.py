"""How far a node gets towards others: the name, the address, the port; and a port that others can try."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from threading import Event
from typing import TypeVar

from platform_launch.hardware import ports
from platform_launch.hardware.names import ResolverInquiry, addresses_of
from platform_launch.hardware.network import is_own
from platform_launch.rendezvous.loop import event_loop
from platform_launch.text import Phrase
from platform_launch.values import dataclass

_Key = TypeVar("_Key", bound=Hashable)

_TOGETHER = 256  # connections tried at the same time
_DROP_AFTER_S = 5.0
_CLOSE_LIMIT_S = 2.0


class ReachStep(Enum):
    """The first step that failed, or OPEN if none did."""

    NAME = Phrase("the name does not resolve")
    NO_NAME_SERVER = Phrase("no name server has answered")
    ROUTE = Phrase("there is no route")
    SILENCE = Phrase("nothing answers")
    REFUSED = Phrase("the connection is refused")
    OPEN = "the port is open"


@dataclass(frozen=True)
class Reach:
    """The result of one try. ``address`` is the one that answered, or the last one tried."""

    step: ReachStep
    address: str = ""

    def describe(self, host: str, port: int) -> str:
        """Describe the obstacle."""
        if self.step is ReachStep.NAME:
            return Phrase("the name {host!r} does not resolve here", host=host)
        if self.step is ReachStep.NO_NAME_SERVER:
            return Phrase("no name server has answered for {host!r} yet", host=host)
        where = f"{host}:{port}" if self.address == host else f"{host}:{port} ({self.address})"
        if self.step is ReachStep.REFUSED:
            itself = Phrase(", which is this machine itself,") if is_own(self.address) else ""
            return Phrase(
                "{where}{itself} refuses the connection: nothing listens there", where=where, itself=itself
            )
        if self.step is ReachStep.ROUTE:
            return Phrase("there is no route to {where}", where=where)
        return Phrase(
            "{where} does not answer: the packets are lost on the way, or the machine is down", where=where
        )


def reach(host: str, port: int, limit_s: float) -> Reach:
    """Try once to resolve a name and connect; takes up to ``limit_s`` for the name and each address."""
    names = resolve(host, limit_s)
    last = Reach(names.step)
    for _, address in names.found:
        last = reach_addresses({0: (address, port)}, limit_s)[0]
        if last.step is ReachStep.OPEN:
            return last
    return last


@dataclass(frozen=True)
class ResolvedName:
    """Family and address of a name, each once; if there are none, ``step`` is the reason.

    NAME: a name server or the system answered so. NO_NAME_SERVER: none has answered yet, or none is known.
    """

    found: tuple[tuple[int, str], ...] = ()
    step: ReachStep = ReachStep.NO_NAME_SERVER


# Running lookups: a repeated query waits for the same one, as a slow server may need that long.
_inquiries: dict[str, ResolverInquiry] = {}


def resolve(host: str, limit_s: float) -> ResolvedName:
    """Resolve a name, waiting at most ``limit_s``.

    A resolver cannot be interrupted, so it runs in a thread. Call this again to get an answer that was late.
    """
    inquiry = _inquiries.get(host) or _inquiries.setdefault(host, addresses_of(host))
    answer = inquiry.answer_by(time.monotonic() + limit_s)
    if not answer.late:
        _inquiries.pop(host, None)
    if answer.failure:
        return ResolvedName(step=ReachStep.NO_NAME_SERVER if answer.unanswered else ReachStep.NAME)
    families = (socket.AF_INET6 if ":" in address else socket.AF_INET for address in answer.found)
    return ResolvedName(tuple(zip(map(int, families), answer.found, strict=True)), ReachStep.OPEN)


def reach_addresses(places: Mapping[_Key, tuple[str, int]], limit_s: float) -> dict[_Key, Reach]:
    """Try to connect to many addresses, hundreds at a time; each of these takes up to ``limit_s``."""
    keys = list(places)
    found: dict[_Key, Reach] = {}
    for start in range(0, len(keys), _TOGETHER):
        steps = _connect_all({key: places[key] for key in keys[start : start + _TOGETHER]}, limit_s)
        found |= {key: Reach(step, places[key][0]) for key, step in steps.items()}
    return found


def _connect_all(places: Mapping[_Key, tuple[str, int]], limit_s: float) -> dict[_Key, ReachStep]:
    found: dict[_Key, ReachStep] = {}
    waiting: dict[int, tuple[_Key, socket.socket]] = {}
    watch = select.poll()
    for key, (address, port) in places.items():
        probe = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        probe.setblocking(False)
        try:
            code = probe.connect_ex((address, port))
        except (OSError, UnicodeError, OverflowError):
            code = errno.EADDRNOTAVAIL
        if code == errno.EINPROGRESS:
            waiting[probe.fileno()] = (key, probe)
            watch.register(probe, select.POLLOUT)
        else:
            probe.close()
            found[key] = reach_step(code)
    deadline = time.monotonic() + limit_s
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        for descriptor, _ in watch.poll(left_s * 1000):
            key, probe = waiting.pop(descriptor)
            watch.unregister(descriptor)
            found[key] = reach_step(probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            probe.close()
    for key, probe in waiting.values():
        probe.close()
        found[key] = ReachStep.SILENCE
    return found


def reach_step(code: int) -> ReachStep:
    """Return what an error number of connect() means."""
    if code in (0, errno.ECONNRESET):  # somebody took the connection, and perhaps dropped it
        return ReachStep.OPEN
    if code == errno.ECONNREFUSED:
        return ReachStep.REFUSED
    # A host of our own network that does not answer ARP is "no route to host" after three seconds.
    return ReachStep.SILENCE if code in (errno.EHOSTUNREACH, errno.ETIMEDOUT) else ReachStep.ROUTE


@contextmanager
def open_port(number: int = 0) -> Iterator[int]:
    """Accept and drop connections on a port of all addresses (0: a free one); yield its number.

    Raises OSError when that cannot be done.
    """
    listener = ports.listen(number, backlog=1024)
    port, loop = int(listener.getsockname()[1]), event_loop()
    server = loop.call(asyncio.start_server(_drop, sock=listener), 60.0)
    try:
        yield port
    finally:
        closed = Event()
        loop.post(server.close)
        loop.post(closed.set)
        closed.wait(_CLOSE_LIMIT_S)


async def _drop(stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait until the other side closes: the port must not be left in TIME_WAIT here."""
    with suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(stream.read(1), _DROP_AFTER_S)
    writer.close()


def is_local_address(family: int, address: str) -> bool:
    """Return whether this machine has an address: the kernel lets only those be bound."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
