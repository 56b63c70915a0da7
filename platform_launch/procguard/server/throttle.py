"""How often a login may be tried: by address, by the name from one address, and by the name from all."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from platform_launch.procguard.refused import Refused

BY_ADDRESS = RateLimitItemPerMinute(30)
BY_NAME = RateLimitItemPerMinute(10)
FROM_ALL = RateLimitItemPerMinute(60)
"""For a name from all addresses: more than one address may try, or it could lock anybody out."""


class TooMany(Refused):
    """Too many logins were tried."""

    status = 429


class Throttle:
    """Counts logins that are tried, successful ones too: a guess is one before it is known to be wrong."""

    def __init__(self, by_address: RateLimitItem = BY_ADDRESS, by_name: RateLimitItem = BY_NAME) -> None:
        self._limiter = FixedWindowRateLimiter(MemoryStorage())
        self._by_address, self._by_name = by_address, by_name

    def count(self, address: str, name: str) -> None:
        """Count one. Raises TooMany. Names that are tried from a blocked address count for nobody."""
        guest, hit = _network(address), self._limiter.hit
        if not (
            hit(self._by_address, "address", guest)
            and hit(self._by_name, "name", guest, name)
            and hit(FROM_ALL, "all", name)
        ):
            raise TooMany("too many logins were tried", "wait a minute")


def _network(address: str) -> str:
    """Return what one guest holds: an IPv4 address, or the /64 of an IPv6 address.

    A server that listens on both sees IPv4 guests as ``::ffff:192.0.2.1``, which are not one network.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(ip_network(f"{parsed}/64", strict=False))
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)
