"""How far a node gets towards another: its name, its address, its port."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass
from enum import Enum
from threading import Thread


class Step(Enum):
    """The first thing that failed, or that nothing did."""

    NAME = "the name does not resolve"
    ROUTE = "there is no route"
    SILENCE = "nothing answers"
    REFUSED = "the connection is refused"
    OPEN = "the port is open"


@dataclass(frozen=True)
class Reach:
    """The result of one try. ``address`` is the one that answered, or the last one tried."""

    step: Step
    address: str = ""

    def in_words(self, host: str, port: int) -> str:
        """Say what stands in the way."""
        if self.step is Step.NAME:
            return f"the name {host!r} does not resolve here"
        where = f"{host}:{port}" if self.address == host else f"{host}:{port} ({self.address})"
        if self.step is Step.REFUSED:
            itself = ", which is this machine itself," if is_loopback(self.address) else ""
            return f"{where}{itself} refuses the connection: nothing listens there"
        if self.step is Step.ROUTE:
            return f"there is no route to {where}"
        return f"{where} does not answer: the packets are lost on the way, or the machine is gone"


def reach(host: str, port: int, limit_s: float) -> Reach:
    """Try once to resolve a name and connect; takes up to ``limit_s`` for the name and each address."""
    last = Reach(Step.NAME)
    for family, address in resolve(host, limit_s):
        last = Reach(_connect(family, address, port, limit_s), address)
        if last.step is Step.OPEN:
            return last
    return last


def resolve(host: str, limit_s: float) -> list[tuple[int, str]]:
    """Return family and address of a name, each once; empty when no answer came in time.

    A resolver cannot be interrupted; the thread is left behind.
    """
    found: list[tuple[int, str]] = []

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        found.extend(dict.fromkeys((int(family), str(address[0])) for family, _, _, _, address in answers))

    thread = Thread(target=ask, name="resolve", daemon=True)
    thread.start()
    thread.join(limit_s)
    return list(found)


def _connect(family: int, address: str, port: int, limit_s: float) -> Step:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(limit_s)
            probe.connect((address, port))
    except ConnectionRefusedError:
        return Step.REFUSED
    except ConnectionResetError:
        return Step.OPEN  # somebody took the connection, and dropped it
    except TimeoutError:
        return Step.SILENCE
    except OSError as error:
        # A host of our own network that does not answer ARP is "no route to host" after three seconds.
        return Step.SILENCE if error.errno in (errno.EHOSTUNREACH, errno.ETIMEDOUT) else Step.ROUTE
    return Step.OPEN


def is_loopback(address: str) -> bool:
    """Tell whether an address means the machine itself, wherever it is used."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def is_here(family: int, address: str) -> bool:
    """Tell whether this machine has an address: the kernel lets only those be bound."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
