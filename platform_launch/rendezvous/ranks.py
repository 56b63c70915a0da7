"""Node ranks in words."""

from __future__ import annotations

from collections.abc import Iterable

_ONE_BY_ONE = 4


def in_words(ranks: Iterable[int]) -> str:
    """Say ranks as a person would: ``node 4, node 9``, or ``nodes 1-15, 20`` where they are many."""
    known = sorted(set(ranks))
    if len(known) <= _ONE_BY_ONE:
        return ", ".join(f"node {rank}" for rank in known) or "no node"
    return f"nodes {compact(known)}"


def compact(ranks: Iterable[int]) -> str:
    """Write ranks as ranges: ``0-3, 7``."""
    ranges: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if ranges and ranges[-1][1] == rank - 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
