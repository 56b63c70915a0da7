"""Whether this machine can listen on a TCP port, and otherwise which process uses it."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path

from platform_launch.hardware.running import command_line, holders
from platform_launch.text import Phrase, joined
from platform_launch.values import dataclass


@dataclass(frozen=True)
class Port:
    """``problem`` is why the port cannot be listened on, or empty.

    ``taken``: because of another process. ``holders`` names the processes that use it, each by its id and the
    beginning of its command line; empty if they cannot be seen (another user's, or in another container).
    """

    number: int
    problem: str = ""
    taken: bool = False
    holders: tuple[str, ...] = ()

    def held_by(self) -> str:
        """Return the holders as text."""
        return joined(self.holders) or Phrase("a process that cannot be seen from here")


def probe(number: int) -> Port:
    """Check whether this node could listen on a port of all its addresses, as TCPStore does.

    Nothing listens there meanwhile: a waiting node would mistake it for node 0.
    """
    problem = _problem(number)
    if problem != os.strerror(errno.EADDRINUSE):
        return Port(number, problem)
    return Port(number, problem, True, _holders(number))


def listen(number: int, backlog: int | None = None) -> socket.socket:
    """Listen as torch's store does: on both protocols, or else on IPv4 only; 0 is any free port.

    Raises OSError if another process listens there.
    """
    try:
        return socket.create_server(
            ("::", number), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
        )
    except OSError:
        return socket.create_server(("0.0.0.0", number), backlog=backlog)  # noqa: S104 - as torch


_reserved: dict[int, socket.socket] = {}


def reserve(number: int) -> bool:
    """Reserve a port for this process until it ends, without opening it; return whether no other process has.

    An abstract Unix socket represents it: the kernel keeps one of a name per network namespace, as it does
    ports, and removes it with its process.
    """
    if number in _reserved:
        return True
    try:
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        holder.bind(_reservation(number))
    except OSError as error:  # any other: no such sockets here, so nobody can reserve
        return error.errno != errno.EADDRINUSE
    _reserved[number] = holder
    return True


def reserved_by(number: int) -> str:
    """Describe which process has reserved a port."""
    name = _reservation(number).replace("\0", "@")
    with suppress(OSError):
        rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        sockets = {f"socket:[{row[6]}]" for row in rows if row[-1] == name}
        return Port(number, holders=_processes(sockets)).held_by()
    return Port(number).held_by()


def _reservation(number: int) -> str:
    return f"\0platform_launch/{number}"


def free() -> int:
    """Return a port that is free now: chosen by the kernel, so that two callers at once get two."""
    with listen(0) as listener:
        return int(listener.getsockname()[1])


def _problem(number: int) -> str:
    """Bind as torch does: to both protocols, else to IPv4 alone (libuv back end of TCPStore).

    With SO_REUSEADDR, closing connections (TIME_WAIT) do not matter; listeners still do.
    """
    reasons = [
        _refusal(family, address, number)
        for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0"))  # noqa: S104
    ]
    return "" if "" in reasons else reasons[-1]


def _refusal(family: int, address: str, number: int) -> str:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind((address, number))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _holders(number: int) -> tuple[str, ...]:
    """Find the processes with an open socket on the port, by its inode."""
    return _processes({f"socket:[{inode}]" for inode in _inodes(number)})


def _processes(sockets: set[str]) -> tuple[str, ...]:
    pids = {pid for found in holders(sockets).values() for pid in found}
    return tuple(f"pid {pid} ({command_line(pid)[:80]})" for pid in sorted(pids))


def _inodes(number: int) -> set[str]:
    """Read /proc/net/tcp: address in field 1, inode in 9 (Linux: networking/proc_net_tcp.rst)."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", name).read_text().splitlines()[1:]:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == number and fields[9] != "0":
                    inodes.add(fields[9])
    return inodes
