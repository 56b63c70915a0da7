"""Host lists in the platforms' formats: compressed, comma separated, with ports, with IPv6 brackets. Pure.

No function resolves a name; all raise TopologyError for text that cannot be a host.
"""

from __future__ import annotations

import re
from itertools import product
from math import prod

from platform_launch.errors import TopologyError, shown
from platform_launch.text import Phrase

MAX_HOSTS = 100_000
"""No job is larger; a list that claims to be is an attack or a typing error."""

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9_.-]+)?")
_IPV4 = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_RUN = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")


def expand(text: str) -> tuple[str, ...]:
    """Expand a compressed list: ``a[1-3,07],b9,c[1-2]x[0-1]`` → a1 a2 a3 a07 b9 c1x0 c1x1 c2x0 c2x1.

    Padding is kept and several brackets multiply, as in Slurm (sbatch(1), ``scontrol show hostnames``).
    """
    hosts: list[str] = []
    for item in _split_outside_brackets(text):
        choices = _choices(item, text)
        if len(hosts) + prod(len(choice) for choice in choices) > MAX_HOSTS:
            raise TopologyError(
                Phrase("host list {text} has more than {most} hosts", text=shown(text), most=MAX_HOSTS)
            )
        hosts.extend(parse_host("".join(parts), "host list") for parts in product(*choices))
    return tuple(hosts)


def expand_counts(text: str) -> tuple[int, ...]:
    """Expand Slurm's run-length code: ``8(x2),4`` → 8, 8, 4."""
    counts: list[int] = []
    for item in text.split(","):
        match = _RUN.fullmatch(item.strip())
        if match is None:
            raise TopologyError(
                Phrase("{text} is not a list of counts: expected a form like 8(x2),4", text=shown(text))
            )
        repeats = int(match[2] or 1)
        if len(counts) + repeats > MAX_HOSTS:
            raise TopologyError(
                Phrase("{text} counts more than {most} nodes", text=shown(text), most=MAX_HOSTS)
            )
        counts.extend([int(match[1])] * repeats)
    return tuple(counts)


def split_hosts(text: str, source: str) -> tuple[str, ...]:
    """Split a list separated by commas, spaces or newlines; drop the ``:port`` or ``:gpus`` after each host.

    Raises TopologyError for the same item twice: two nodes cannot have one place in the list.
    """
    items = re.split(r"[,\s]+", text.strip().strip(","))
    if len(items) > MAX_HOSTS:
        raise TopologyError(Phrase("{source} has more than {most} hosts", source=source, most=MAX_HOSTS))
    refuse_repeats(items, source)
    return tuple(split_host_port(item, source)[0] for item in items)


def refuse_repeats(items: list[str] | tuple[str, ...], source: str) -> None:
    """Raise TopologyError if an item is in a list of nodes twice."""
    seen: set[str] = set()
    for item in items:
        if item in seen:
            raise TopologyError(
                Phrase(
                    "{source} names {item} twice: expected each node once, in the order of node ranks",
                    source=source,
                    item=shown(item),
                ),
                "correct the list, or pass --nnodes, --node-rank and --master-addr",
            )
        seen.add(item)


def split_host_port(text: str, source: str) -> tuple[str, str | None]:
    """Split ``host:port``, ``[v6]:port``, ``host`` or a bare IPv6 address into host and what followed it."""
    item = text.strip()
    if item.startswith("["):
        host, closed, rest = item[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise TopologyError(
                Phrase(
                    "{source}: {item} is not a host: expected [IPv6] or [IPv6]:port",
                    source=source,
                    item=shown(item),
                )
            )
        return parse_host(host, source), rest[1:] or None
    if item.count(":") == 1:
        host, _, port = item.partition(":")
        return parse_host(host, source), port or None
    return parse_host(item, source), None


def parse_host(text: str, source: str) -> str:
    """Return a host name, IPv4 or IPv6 address without brackets; anything else raises TopologyError."""
    host = text.strip()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    # Two dots are left of a part that was empty, as in ${JOB}-0.${SERVICE}.svc: nothing is ever found so.
    named = ".." not in host and _HOST.fullmatch(host)
    if len(host) <= 253 and (named or _IPV6.fullmatch(host)):
        return host
    raise TopologyError(
        Phrase(
            "{source}={text} is not a host: expected a name or an address, without a port",
            source=source,
            text=shown(text),
        ),
        "correct it, or pass --master-addr",
    )


def bracketed(address: str) -> str:
    """Return a host as written before a port: an IPv6 address in brackets."""
    return f"[{address}]" if ":" in address else address


def position(hosts: tuple[str, ...], names: frozenset[str]) -> int | None:
    """Return the index of one of ``names`` in the list, None if there is none or it is ambiguous.

    Whole names are compared first, then the parts before the first dot, as one side may be qualified and
    the other not.
    """
    exact = [index for index, host in enumerate(hosts) if host in names]
    if exact:
        return exact[0] if len(exact) == 1 else None
    short_names = {short_name(name) for name in names}
    alike = [index for index, host in enumerate(hosts) if short_name(host) in short_names]
    return alike[0] if len(alike) == 1 else None


def short_name(host: str) -> str:
    """Return the part of a name before its domain; addresses have none and stay whole."""
    return host if _IPV4.fullmatch(host) or ":" in host else host.split(".", 1)[0]


def _split_outside_brackets(text: str) -> list[str]:
    items, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise TopologyError(Phrase("host list {text}: brackets do not match", text=shown(text)))
        if character == "," and depth == 0:
            items.append(text[start:index].strip())
            start = index + 1
    items.append(text[start:].strip())
    if depth or "" in items:
        raise TopologyError(
            Phrase("host list {text} is malformed: expected a form like gpu[01-04,7],n1", text=shown(text))
        )
    return items


def _choices(item: str, text: str) -> list[list[str]]:
    """Return the possible texts of each part of ``a[1-2]x[0-1]``: fixed parts have one."""
    parts = re.split(r"\[([^\]]*)\]", item)  # odd places hold what stood in brackets
    return [
        _expand_ranges(part, text) if index % 2 else [part]
        for index, part in enumerate(parts)
        if part or index % 2
    ]


def _expand_ranges(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise TopologyError(
                Phrase(
                    "host list {text}: {part} is not a range: expected 3 or 01-04",
                    text=shown(text),
                    part=shown(part),
                )
            )
        first, last = match[1], match[2] or match[1]
        if len(numbers) + int(last) - int(first) >= MAX_HOSTS:
            raise TopologyError(
                Phrase("host list {text} has more than {most} hosts", text=shown(text), most=MAX_HOSTS)
            )
        numbers.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return numbers
