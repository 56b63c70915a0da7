"""Rate limits on logins, by address, by name from one address and by name from all, and on joins."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address, ip_network

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from platform_launch.procguard.api.refused import RequestRefused

BY_ADDRESS = RateLimitItemPerMinute(30)
BY_NAME = RateLimitItemPerMinute(10)
FROM_ALL = RateLimitItemPerMinute(60)
"""For a name from all addresses: several addresses are needed to lock somebody out."""


_RECORDED_JOINS = RateLimitItemPerMinute(1)
FAILED_JOINS = RateLimitItemPerMinute(30)
"""With a wrong token, from one address."""

NEW_NODES = RateLimitItemPerMinute(300)
"""From one address, with the right token, whose holder can make up names."""

_REMEMBERED = 10_000


class TooMany(RequestRefused):
    """Too many login attempts, or joins with a wrong token."""

    status = 429


class Throttle:
    """Counts login attempts, including successful ones."""

    def __init__(
        self,
        by_address: RateLimitItem = BY_ADDRESS,
        by_name: RateLimitItem = BY_NAME,
        new_nodes: RateLimitItem = NEW_NODES,
    ) -> None:
        self._new_nodes = new_nodes
        self._limiter = FixedWindowRateLimiter(MemoryStorage())
        self._by_address, self._by_name = by_address, by_name
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def count(self, address: str, name: str) -> None:
        """Count an attempt. Raises TooMany. Attempts from a blocked address do not count against the name."""
        network, hit = _network(address), self._limiter.hit
        if not (
            hit(self._by_address, "address", network)
            and hit(self._by_name, "name", network, name)
            and ((network, name) in self._known or hit(FROM_ALL, "all", name))
        ):
            raise TooMany("too-many-logins")

    def succeeded(self, address: str, name: str) -> None:
        """Remember a successful login: attempts from elsewhere do not lock that address out."""
        key = (_network(address), name)
        self._known[key] = None
        self._known.move_to_end(key)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def count_failed_join(self, address: str) -> bool:
        """Count a join with a wrong token; return whether it is the first this minute. Raises TooMany."""
        network = _network(address)
        if not self._limiter.hit(FAILED_JOINS, "join", network):
            raise TooMany("too-many-joins")
        return self._limiter.hit(_RECORDED_JOINS, "recorded", network)

    def count_new_node(self, address: str) -> None:
        """Count a node that joins for the first time. Raises TooMany."""
        if not self._limiter.hit(self._new_nodes, "new node", _network(address)):
            raise TooMany("too-many-nodes", limit=str(self._new_nodes.amount))


def _network(address: str) -> str:
    """Return what belongs to one client: an IPv4 address, or the /64 of an IPv6 address.

    A server that listens on both sees IPv4 clients as ``::ffff:192.0.2.1``, which are not one network.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(ip_network(f"{parsed}/64", strict=False))
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)
