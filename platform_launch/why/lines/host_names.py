"""Which words stand where a host's name does and name no machine to others."""

from __future__ import annotations

_LOCAL = ("localhost", "localhost.localdomain", "127.0.0.1", "0.0.0.0", "::1", "none", "null")  # noqa: S104 - a name, not bound


def names_a_machine(host: str) -> bool:
    """Tell whether a host's name tells which machine it is."""
    return host.lower() not in _LOCAL
