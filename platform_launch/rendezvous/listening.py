"""The ports of the rendezvous: INIT_MASTER_PORT if it is set, and a fixed list of candidates.

A port is borrowed, not owned: node 0 listens on the first candidate that is free, and every node tries all of
them. The list is computed from MASTER_PORT, so that jobs with neighbouring MASTER_PORTs do not take each
other's.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Sequence
from contextlib import suppress

from platform_launch.environment import Environment
from platform_launch.errors import InstallationError, TopologyError
from platform_launch.hardware import ports
from platform_launch.platforms.ports import own_ports
from platform_launch.text import Phrase, joined
from platform_launch.topology import Topology

_CANDIDATES = 3
# Fits into 576 bytes, which pass everywhere (RFC 791): so nodes can join even if a switch drops large
# packets.
_SEGMENT_BYTES = 536
_BACKLOG = 4096
# What a launcher opens besides one connection per node.
_OTHER_DESCRIPTORS = 256


class PortInUseError(Exception):
    """The rendezvous cannot listen on any of its ports. The message has the reason, and who holds them."""

    hint = (
        "end that process, or set INIT_MASTER_PORT to a free port on all nodes; "
        "if it is another job's, give this one another MASTER_PORT too"
    )


def port_problem(port: int) -> str:
    """Describe why a port of this machine cannot be used, and who holds it."""
    found = ports.probe(port)
    return Phrase(
        "cannot be used: {problem}; it is held by {holders}",
        problem=found.problem or "refused",
        holders=found.held_by(),
    )


def rendezvous_ports(topology: Topology, env: Environment) -> tuple[int, ...]:
    """Return the ports of the rendezvous, in the order to try.

    Raises TopologyError if INIT_MASTER_PORT is not a port, or is MASTER_PORT.
    """
    chosen = env.port("INIT_MASTER_PORT")
    if chosen is not None and chosen.value == topology.master_port:
        raise TopologyError(
            Phrase(
                "INIT_MASTER_PORT={port} is MASTER_PORT too: expected a port of its own for the roll call",
                port=chosen.value,
            ),
            "unset INIT_MASTER_PORT to use the default ports, or pass --no-roll-call",
        )
    return ((chosen.value,) if chosen else ()) + candidates(topology.master_port)


def candidates(master_port: int) -> tuple[int, ...]:
    """Return the ports that every node of a job tries."""
    return own_ports(master_port, _CANDIDATES)


def listen(candidates: Sequence[int], nnodes: int) -> socket.socket:
    """Listen on the first port that is free (0: any) of all addresses, for connections of so many nodes.

    Raises PortInUseError.
    """
    _expect_descriptors(nnodes + _OTHER_DESCRIPTORS)
    for port in candidates:
        with suppress(OSError):
            listener = ports.listen(port, _BACKLOG)
            # Connections inherit it and announce it to the other side.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT_BYTES)
            return listener
    first = candidates[0]
    text = Phrase("port {port} for the roll call {why}", port=first, why=port_problem(first))
    if len(candidates) > 1:
        others = joined(candidates[1:])
        text = Phrase("{text}; neither can its alternatives {others}", text=text, others=others)
    raise PortInUseError(text)


def _expect_descriptors(count: int) -> None:
    """Let this process open so many files and connections. Raises InstallationError if it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise InstallationError(
            Phrase(
                "node 0 may open {hard} files (ulimit -Hn), but needs {count}: one connection per node",
                hard=hard,
                count=count,
            ),
            "raise the limit of open files on node 0",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
