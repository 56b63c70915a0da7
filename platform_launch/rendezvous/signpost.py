"""MASTER_PORT while the nodes gather: open, so that they can try it, and it says on which port they meet.

That is INIT_MASTER_PORT, unless another process has it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from platform_launch.rendezvous.messages import InvalidMessageError, Message, decode, encode
from platform_launch.rendezvous.reach import open_port

_LIMIT_S = 1.0
_MOST_BYTES = 256
_HIGHEST_PORT = 65535


@dataclass(frozen=True)
class MeetingPort(Message):
    """The nodes meet on this port of the machine that was asked."""

    port: int


def signpost(port: int, meeting_port: Callable[[], int]) -> AbstractContextManager[int]:
    """Answer on a port where the nodes meet, 0 while that is not known. Raises OSError: it is taken."""
    return open_port(port, lambda: encode(MeetingPort(meeting_port())) + b"\n")


def read_signpost(address: str, port: int) -> int | None:
    """Ask where the nodes meet; None where nobody says it: node 0 is not up yet, or they train already."""
    try:
        with socket.create_connection((address, port), _LIMIT_S) as connection:
            answer = connection.makefile("rb").readline(_MOST_BYTES)
        told = decode(answer.rstrip(), MeetingPort).port
    except (OSError, InvalidMessageError):
        return None
    return told if 0 < told <= _HIGHEST_PORT else None
