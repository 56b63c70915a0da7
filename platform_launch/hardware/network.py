"""Network interfaces that the job can use, and the one on the route to the master."""

from __future__ import annotations

import fcntl
import socket
import struct
import time
from collections.abc import Iterable

from platform_launch.errors import InstallationError
from platform_launch.hardware import names
from platform_launch.text import Phrase
from platform_launch.values import dataclass

# Made by container engines, cluster networks and virtual machines for traffic inside one machine, or
# overlays that hide the real interface. "br-" is a Docker network; a plain "br0" may be the real one.
_NOT_FOR_TRAINING = (
    "docker", "veth", "virbr", "br-", "cni", "flannel", "cali", "tunl", "dummy", "ifb", "kube-",
    "nodelocaldns", "cilium_", "lxc", "lxd", "podman", "vnet", "weave", "vxlan.calico",
)  # fmt: skip

# Not routed: IPv6 link-local (fe80::/10), and the IPv4 kind that management controllers get.
_LINK_LOCAL = ("fe8", "fe9", "fea", "feb", "169.254.")

_RESOLVE_LIMIT_S = 0.3
_SIOCGIFMTU = 0x8921  # linux/sockios.h


@dataclass(frozen=True)
class Interface:
    """A network interface that can carry the job's traffic (up, not loopback, docker, veth or virbr).

    ``addresses`` are IPv4 and IPv6 without prefix length, link-local ones left out. ``speed_mbps`` is None if
    the kernel does not know it.
    """

    name: str
    addresses: tuple[str, ...]
    speed_mbps: int | None = None


@dataclass(frozen=True)
class Link:
    """An interface as reported by the system. ``speed_mbps`` 0 means unknown."""

    name: str
    up: bool
    addresses: tuple[str, ...]
    speed_mbps: int = 0


def find() -> tuple[Interface, ...]:
    """Return this machine's interfaces that the job can use. Raises InstallationError without /proc."""
    return usable(_links())


def all_names() -> frozenset[str]:
    """Return the name of every interface, also of those that are down or internal to the machine."""
    return frozenset(name for _, name in socket.if_nameindex())


def mtu(name: str) -> int:
    """Return the size of the largest packets of an interface, 0 if the kernel does not report it."""
    request = struct.pack("16si20x", name.encode()[:15], 0)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
            answer = fcntl.ioctl(door, _SIOCGIFMTU, request)
    except OSError:
        return 0
    return int(struct.unpack("16si20x", answer)[1])


def usable(links: Iterable[Link]) -> tuple[Interface, ...]:
    """Keep what is up, has a routed address and is not internal to the machine."""
    kept = []
    for link in links:
        addresses = tuple(text for text in link.addresses if not text.lower().startswith(_LINK_LOCAL))
        if link.up and addresses and link.name != "lo" and not link.name.startswith(_NOT_FOR_TRAINING):
            kept.append(Interface(link.name, addresses, link.speed_mbps or None))
    return tuple(kept)


def _links() -> list[Link]:
    import psutil  # costs 10 ms

    try:
        states = psutil.net_if_stats()
    except OSError as error:
        raise InstallationError(
            Phrase(
                "{what} cannot be read: {problem}",
                what=error.filename or Phrase("the network interfaces"),
                problem=error.strerror,
            ),
            (
                "mount /proc in the container or chroot (mount -t proc proc /proc); processes are "
                "observed there, too"
            ),
        ) from error
    return [
        Link(
            name,
            name in states and states[name].isup,
            tuple(a.address for a in addresses if a.family in (socket.AF_INET, socket.AF_INET6)),
            states[name].speed if name in states else 0,
        )
        for name, addresses in psutil.net_if_addrs().items()
    ]


def route_towards(master_addr: str, interfaces: Iterable[Interface]) -> str | None:
    """Return the interface on this machine's route to the master.

    If the master is this machine, that is the interface with its address. None if the name does not resolve
    at once, no route exists, or the address belongs to no usable interface (loopback).
    """
    for family, address in _resolve(master_addr):
        own = _source_address(family, address)
        for interface in interfaces:
            if own in interface.addresses:
                return interface.name
    return None


def is_own(address: str) -> bool:
    """Return whether an address is one of this machine's: the kernel routes it to itself."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return names.is_loopback(address) or _source_address(family, address) == address


def address_towards(master_addr: str, interfaces: Iterable[Interface]) -> str | None:
    """Return this machine's address on its route to the master, otherwise its first routed one, otherwise
    None.
    """
    interfaces = tuple(interfaces)
    known = [address for interface in interfaces for address in interface.addresses]
    routed = [_source_address(family, address) for family, address in _resolve(master_addr)]
    return next((address for address in (*routed, *known) if address in known), None)


def _source_address(family: int, address: str) -> str | None:
    """Return the local address that the kernel would use. Connecting a UDP socket sends nothing."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _resolve(name: str) -> list[tuple[int, str]]:
    """Resolve within a short limit: a name server that does not answer must not delay the launch."""
    answer = names.addresses_of(name).answer_by(time.monotonic() + _RESOLVE_LIMIT_S)
    return [(socket.AF_INET6 if ":" in found else socket.AF_INET, found) for found in answer.found]
