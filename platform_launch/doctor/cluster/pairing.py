"""Which nodes run a collective together, so that the faulty node can be told. Pure.

A bad result makes both nodes of a pair suspect. So nodes are paired twice: in the second pairing, a suspect
gets a partner that did well, and a node that is bad twice, with different partners, is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from platform_launch.doctor.cluster.document import Measurement

Group = tuple[int, ...]

# Measurements of one network differ by less than this; a port at half its rate by more.
SLOW = 0.5
# Two pairings, a third one for three nodes, and all together.
ROUNDS = 4


def first(ranks: Sequence[int]) -> list[Group]:
    """Pair neighbours. With an odd number of nodes the last one waits for the second pairing."""
    return [(a, b) for a, b in zip(ranks[::2], ranks[1::2], strict=False)]


def second(ranks: Sequence[int], results: Sequence[Measurement]) -> list[Group]:
    """Pair suspects, and nodes without a measurement, with nodes that did well; pair the others again."""
    if len(ranks) < 3:
        return []
    if len(ranks) == 3:  # too few to compare: the two other pairs, one after the other
        return [(ranks[1], ranks[2])]
    good = {rank for result in results if not is_bad(result, results) for rank in result.group}
    well = _one_of_each_pair_first([rank for rank in ranks if rank in good])
    doubted = _one_of_each_pair_first([rank for rank in ranks if rank not in good])
    pairs = list(zip(doubted, well, strict=False))
    rest = sorted([*doubted[len(pairs) :], *well[len(pairs) :]])
    # Pair one half of the rest with the other, so that former neighbours are separated.
    half = len(rest) // 2
    return [*pairs, *zip(rest[:half], rest[half : 2 * half], strict=True)]


def _one_of_each_pair_first(ranks: Sequence[int]) -> list[int]:
    return [*ranks[::2], *ranks[1::2]]


def third(ranks: Sequence[int]) -> list[Group]:
    """Complete the three pairs of three nodes."""
    return [(ranks[0], ranks[2])] if len(ranks) == 3 else []


def reference_gbps(results: Iterable[Measurement]) -> float:
    """Return the bandwidth to compare with: the one that a third of the measurements exceed.

    One slow node can make half of the measurements slow, and of two measurements the faster one must count.
    """
    measured = sorted((o.bandwidth_gbps for o in results if not o.problem), reverse=True)
    return measured[(len(measured) - 1) // 3] if measured else 0.0


def is_bad(result: Measurement, among: Iterable[Measurement]) -> bool:
    """Return whether a group failed, or was much slower than the others."""
    return bool(result.problem) or result.bandwidth_gbps < SLOW * reference_gbps(among)
