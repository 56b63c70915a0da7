"""A port that nobody else is given while a test needs it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port: nobody listens there, and only who asks for it by its number can.

    The kernel gives a bound port to no one who asks for any. Two may bind one where both allow that, as
    servers do, and one of them may listen.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
