"""Which words stand where a host's name does and name no machine to others."""

from __future__ import annotations

import re
from functools import lru_cache

_LOCAL = ("localhost", "localhost.localdomain", "127.0.0.1", "0.0.0.0", "::1", "none", "null")  # noqa: S104 - a name, not bound
# What somebody wrote over it before a log was shown to others: xxxx, x.x.x.x, 10.0.x.x, ***, <ip>.
_HIDDEN = re.compile(
    r"(?xi) [x*#?]{2,64} | [x*#?]{1,16}(?:[.:-][x*#?]{1,16}){1,8}"
    r"| (?=.*[x*#?]) (?:\d{1,3}|[x*#?]{1,3}) (?:\.(?:\d{1,3}|[x*#?]{1,3})){3}"
    r"| [<\[({][^\d]{0,64}[>\])}]"
    r"| redacted | anonymi[sz]ed | masked | hidden | host_?name | ip | ip[_-]?addr(?:ess)?"
)


@lru_cache(maxsize=4096)
def names_a_machine(host: str) -> bool:
    """Tell whether a host's name tells which machine it is."""
    return host.lower() not in _LOCAL and _HIDDEN.fullmatch(host) is None
