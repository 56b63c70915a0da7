"""The port of the rendezvous: INIT_MASTER_PORT, unless another process has it.

MASTER_PORT, open while they gather so that they can try it, says which one it became. A node 0 that cannot
serve a rendezvous says there that none will be.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from platform_launch.environment import Environment
from platform_launch.errors import TopologyError
from platform_launch.rendezvous.authentication import Seal
from platform_launch.rendezvous.messages import InvalidMessageError, Message, decode, encode
from platform_launch.rendezvous.reach import open_port
from platform_launch.rendezvous.verdict import RunRefusal
from platform_launch.text import Phrase
from platform_launch.topology import Topology

_LIMIT_S = 1.0
_MOST_BYTES = 16 * 1024
_REFUSAL = "refusal"
_HIGHEST_PORT = 65535


@dataclass(frozen=True)
class RendezvousPort(Message):
    """The rendezvous is on this port of the machine that was asked."""

    port: int


def rendezvous_port(topology: Topology, env: Environment) -> int:
    """Return the port of node 0 where the nodes meet: INIT_MASTER_PORT, by default the one after MASTER_PORT.

    Raises TopologyError when INIT_MASTER_PORT is no port, or is MASTER_PORT.
    """
    chosen = env.port("INIT_MASTER_PORT")
    above = topology.master_port + 1
    port = chosen.value if chosen else above if above <= _HIGHEST_PORT else topology.master_port - 1
    if port == topology.master_port:
        raise TopologyError(
            Phrase(
                "INIT_MASTER_PORT={port} is MASTER_PORT too: expected a port of its own for the roll call",
                port=port,
            ),
            "unset INIT_MASTER_PORT to use the port after MASTER_PORT, or pass --no-roll-call",
        )
    return port


def announce_port(port: int, known_port: Callable[[], int]) -> AbstractContextManager[int]:
    """Tell on one port which is that of the rendezvous, 0 while unknown. Raises OSError: it is taken."""
    return open_port(port, lambda: encode(RendezvousPort(known_port())) + b"\n")


def announce_refusal(
    port: int, refusal: RunRefusal, seal: Seal, heard: Callable[[], None]
) -> AbstractContextManager[int]:
    """Tell on one port that there will be no rendezvous, and call ``heard`` for each who asks there.

    Raises OSError: the port is taken.
    """
    entry = seal.close(_REFUSAL, refusal) + b"\n"

    def greeting() -> bytes:
        heard()
        return entry

    return open_port(port, greeting)


def discover_port(address: str, port: int, seal: Seal | None = None) -> int | RunRefusal | None:
    """Ask for the port of the rendezvous; None where nobody tells it: node 0 is not up, or trains already.

    That there will be none is believed where it is sealed with ``seal``.
    """
    try:
        with socket.create_connection((address, port), _LIMIT_S) as connection:
            answer = connection.makefile("rb").readline(_MOST_BYTES).rstrip()
    except OSError:
        return None
    with suppress(InvalidMessageError):
        found = decode(answer, RendezvousPort).port
        return found if 0 < found <= _HIGHEST_PORT else None
    with suppress(InvalidMessageError):
        return seal.open(_REFUSAL, answer, RunRefusal) if seal is not None else None
    return None
