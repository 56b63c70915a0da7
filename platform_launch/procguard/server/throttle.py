"""How often a login may be tried: by address, by the name from one address, and by the name from all."""

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
"""For a name from all addresses: more than one address may try, or it could lock anybody out."""


_RECORDED_JOINS = RateLimitItemPerMinute(1)
FAILED_JOINS = RateLimitItemPerMinute(30)
"""With a wrong token, from one address."""

NEW_NODES = RateLimitItemPerMinute(300)
"""Of one address, with the right token: whoever has it can make up names."""

_REMEMBERED = 10_000


class TooMany(RequestRefused):
    """Too many logins, or joins with a wrong token, were tried."""

    status = 429


class Throttle:
    """Counts logins that are tried, successful ones too: a guess is one before it is known to be wrong."""

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
        """Count one. Raises TooMany. Names that are tried from a blocked address count for nobody."""
        network, hit = _network(address), self._limiter.hit
        if not (
            hit(self._by_address, "address", network)
            and hit(self._by_name, "name", network, name)
            and ((network, name) in self._known or hit(FROM_ALL, "all", name))
        ):
            raise TooMany("too many logins were tried", "wait a minute", code="too-many-logins")

    def succeeded(self, address: str, name: str) -> None:
        """Remember where somebody logged in: tries from elsewhere do not lock that address out."""
        key = (_network(address), name)
        self._known[key] = None
        self._known.move_to_end(key)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def count_failed_join(self, address: str) -> bool:
        """Count a join with a wrong token; tell whether it is the first this minute. Raises TooMany."""
        network = _network(address)
        if not self._limiter.hit(FAILED_JOINS, "join", network):
            raise TooMany("too many joins with a wrong token", "wait a minute, and correct the token")
        return self._limiter.hit(_RECORDED_JOINS, "recorded", network)

    def count_new_node(self, address: str) -> None:
        """Count a node that joins for the first time. Raises TooMany."""
        if not self._limiter.hit(self._new_nodes, "new node", _network(address)):
            raise TooMany(
                f"more than {self._new_nodes.amount} new nodes from one address in a minute",
                "this agent tries again; new_nodes_per_minute in the server's configuration is the limit",
            )


def _network(address: str) -> str:
    """Return what one client holds: an IPv4 address, or the /64 of an IPv6 address.

    A server that listens on both sees IPv4 clients as ``::ffff:192.0.2.1``, which are not one network.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(ip_network(f"{parsed}/64", strict=False))
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)
