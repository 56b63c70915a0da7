"""Queries the system's resolver, which may take minutes, without waiting for it."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable
from threading import Thread

from platform_launch.values import dataclass

_UNANSWERED = (socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_SYSTEM)


@dataclass(frozen=True)
class ResolverAnswer:
    """The resolver's answer: addresses for a name, names for an address.

    ``failure`` is its reason, or that it did not answer in time; empty if it answered. ``unanswered``: no
    name server has answered, so that a retry may help.
    """

    query: str
    found: tuple[str, ...] = ()
    failure: str = ""
    late: bool = False
    unanswered: bool = False


class ResolverInquiry:
    """A query that runs in the background.

    Its thread may hang in the resolver; as a daemon, it does not keep the process alive.
    """

    def __init__(self, query: str, question: Callable[[str], tuple[str, ...]]) -> None:
        self._query = query
        self._answer: ResolverAnswer | None = None
        self._question = question
        self._thread = Thread(target=self._ask, name=f"resolve-{query[:40]}", daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            self._answer = ResolverAnswer(self._query, self._question(self._query))
        except OSError as error:
            unanswered = isinstance(error, socket.gaierror) and error.errno in _UNANSWERED
            reason = error.strerror or str(error)
            self._answer = ResolverAnswer(self._query, failure=reason, unanswered=unanswered)
        except UnicodeError:  # a label longer than 63 characters, an empty one
            self._answer = ResolverAnswer(self._query, failure="not a host name")

    def answer_by(self, deadline_s: float) -> ResolverAnswer:
        """Return the answer, waiting until ``deadline_s`` of the monotonic clock at most."""
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._answer is None:
            return ResolverAnswer(
                self._query, failure="the resolver does not answer", late=True, unanswered=True
            )
        return self._answer


def addresses_of(name: str) -> ResolverInquiry:
    """Query the addresses of a name."""
    return ResolverInquiry(name, _addresses)


def names_of(address: str) -> ResolverInquiry:
    """Query the name of an address, as torch's TCPStore does for each connection."""
    return ResolverInquiry(address, _names)


def is_loopback(address: str) -> bool:
    """Return whether an address is a loopback address."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _addresses(name: str) -> tuple[str, ...]:
    # As bytes, otherwise Python imports its tables for internationalised names.
    host = name.encode() if name.isascii() else name
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in answers))


def _names(address: str) -> tuple[str, ...]:
    return (socket.gethostbyaddr(address)[0],)
