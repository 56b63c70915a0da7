"""Node ranks as people write and read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from platform_launch.errors import UsageError, shown
from platform_launch.text import Phrase, joined

if TYPE_CHECKING:
    from platform_launch.rendezvous.fingerprint import Fingerprint

_ONE_BY_ONE = 4
_MOST_PHRASES = 16


def parse_ranks(text: str) -> set[int]:
    """Read ``3``, ``0,2-3`` or ``rank-2``. Raises UsageError."""
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.strip().removeprefix("rank-").partition("-"))
        last = last if dash else first
        digits = all(word.isascii() and word.isdigit() and len(word) <= 6 for word in (first, last))
        if not digits or int(first) > int(last):
            raise UsageError(
                Phrase("{text} is not a list of ranks: expected e.g. 0,2-3", text=shown(text)),
                "ranks count from 0",
            )
        ranks |= set(range(int(first), int(last) + 1))
    return ranks


def describe_nodes(ranks: Iterable[int]) -> Phrase:
    """Format ranks for people: ``node 4, node 9``, or ``nodes 1-15, 20`` if there are many."""
    known = sorted(set(ranks))
    if len(known) <= _ONE_BY_ONE:
        return joined(Phrase("node {rank}", rank=rank) for rank in known) if known else Phrase("no node")
    return Phrase("nodes {ranks}", ranks=compact(known))


def compact(ranks: Iterable[int]) -> str:
    """Write ranks as ranges: ``0-3, 7``."""
    return joined(str(first) if first == last else f"{first}-{last}" for first, last in ranges(ranks))


def ranges(ranks: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """Return the first and the last rank of each consecutive range: (0, 3), (7, 7)."""
    found: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return tuple(map(tuple, found))


def absent_ranks(present: Mapping[int, Fingerprint], nnodes: int) -> list[int]:
    """Return the ranks that have not joined."""
    return [rank for rank in range(nnodes) if rank not in present]


def describe_absent(absent: Sequence[int], nnodes: int, last_seen_s: Mapping[int, float]) -> Phrase:
    """Describe the absent nodes: ``2 of 16 nodes missing: node 4, node 9; never connected``.

    ``last_seen_s`` maps ranks that have been connected to the seconds since then.
    """
    seen = [
        Phrase("node {rank} {silent:.0f} s ago", rank=rank, silent=last_seen_s[rank])
        for rank in absent
        if rank in last_seen_s
    ]
    last_seen = Phrase("never connected")
    if seen:
        others = [Phrase("the others never")] if len(seen) < len(absent) else []
        last_seen = Phrase("last heard from {nodes}", nodes=listed([*seen, *others], ", "))
    return Phrase(
        "{count} of {nodes} nodes missing: {names}; {last_seen}",
        count=len(absent),
        nodes=nnodes,
        names=describe_nodes(absent),
        last_seen=last_seen,
    )


def listed(texts: Sequence[str], between: str = "; ") -> str:
    """Join texts. If there are many, as from thousands of nodes, the result is plain text, not a phrase."""
    return joined(texts, between) if len(texts) <= _MOST_PHRASES else between.join(texts)


def looks_like_processes(present: Mapping[int, Fingerprint], nnodes: int) -> str:
    """Return a message if the announced number of nodes seems to count processes, otherwise an empty text.

    A bare WORLD_SIZE counts nodes here and processes elsewhere. Then the ranks that joined are 0, 1, …
    without a gap, or multiples of the GPUs per node, and all their GPUs together are the announced number.
    """
    gpus = {node.gpus for node in present.values()}
    ranks = sorted(present)
    if len(gpus) != 1 or not ranks:
        return ""
    each = gpus.pop()
    dense = ranks == list(range(len(ranks)))
    spread = ranks == list(range(0, each * len(ranks), each)) if each else False
    if each < 2 or nnodes != len(ranks) * each or not (dense or spread):
        return ""
    return Phrase(
        (
            "{came} nodes connected, {announced} were expected, and each has {each} GPUs: "
            "WORLD_SIZE={announced} looks like the number of processes, but this launcher expects "
            "the number of nodes, {came}"
        ),
        came=len(ranks),
        announced=nnodes,
        each=each,
    )
