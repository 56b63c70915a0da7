"""The port of the rendezvous: INIT_MASTER_PORT, unless another process has it.

MASTER_PORT, open while they gather so that they can try it, says which one it became.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from platform_launch.environment import Environment
from platform_launch.errors import TopologyError
from platform_launch.rendezvous.messages import InvalidMessageError, Message, decode, encode
from platform_launch.rendezvous.reach import open_port
from platform_launch.topology import Topology

_LIMIT_S = 1.0
_MOST_BYTES = 256
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
            f"INIT_MASTER_PORT={port} is MASTER_PORT too: expected a port of its own for the roll call",
            "unset INIT_MASTER_PORT to use the port after MASTER_PORT, or pass --no-roll-call",
        )
    return port


def announce_port(port: int, known_port: Callable[[], int]) -> AbstractContextManager[int]:
    """Tell on one port which is that of the rendezvous, 0 while unknown. Raises OSError: it is taken."""
    return open_port(port, lambda: encode(RendezvousPort(known_port())) + b"\n")


def discover_port(address: str, port: int) -> int | None:
    """Ask for the port of the rendezvous; None where nobody tells it: node 0 is not up, or trains already."""
    try:
        with socket.create_connection((address, port), _LIMIT_S) as connection:
            answer = connection.makefile("rb").readline(_MOST_BYTES)
        told = decode(answer.rstrip(), RendezvousPort).port
    except (OSError, InvalidMessageError):
        return None
    return told if 0 < told <= _HIGHEST_PORT else None
