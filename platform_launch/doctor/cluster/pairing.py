"""Who tries a collective with whom, so that a fault shows where it is. Pure.

Two nodes that measure badly together accuse both. So nodes are paired twice: a suspect of the first pairing
meets a node that did well in the second, and what is bad twice, with different partners, is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from platform_launch.doctor.cluster.document import Measurement

Group = tuple[int, ...]

# Measurements of one network differ by less; a port that came up at half its rate does not.
SLOW = 0.5
# Two pairings, for three nodes a third one, and all together.
ROUNDS = 4


def first(ranks: Sequence[int]) -> list[Group]:
    """Pair neighbours. With an odd number of nodes the last one waits for the second pairing."""
    return [(a, b) for a, b in zip(ranks[::2], ranks[1::2], strict=False)]


def second(ranks: Sequence[int], results: Sequence[Measurement]) -> list[Group]:
    """Pair suspects, and whoever has not been measured, with nodes that did well; and the others anew."""
    if len(ranks) < 3:
        return []
    if len(ranks) == 3:  # too few to compare: the two other pairs, one after the other
        return [(ranks[1], ranks[2])]
    good = {rank for result in results if not is_bad(result, results) for rank in result.group}
    well = _one_of_each_pair_first([rank for rank in ranks if rank in good])
    doubted = _one_of_each_pair_first([rank for rank in ranks if rank not in good])
    pairs = list(zip(doubted, well, strict=False))
    rest = sorted([*doubted[len(pairs) :], *well[len(pairs) :]])
    # Each half of the rest meets the other, so that former neighbours part.
    half = len(rest) // 2
    return [*pairs, *zip(rest[:half], rest[half : 2 * half], strict=True)]


def _one_of_each_pair_first(ranks: Sequence[int]) -> list[int]:
    return [*ranks[::2], *ranks[1::2]]


def third(ranks: Sequence[int]) -> list[Group]:
    """Complete the three pairs of three nodes."""
    return [(ranks[0], ranks[2])] if len(ranks) == 3 else []


def reference_gbps(results: Iterable[Measurement]) -> float:
    """Return the bandwidth that the others are compared with: exceeded by a third of them.

    One slow node can make half of the measurements slow, and of two the faster one must count.
    """
    measured = sorted((o.bandwidth_gbps for o in results if not o.problem), reverse=True)
    return measured[(len(measured) - 1) // 3] if measured else 0.0


def is_bad(result: Measurement, among: Iterable[Measurement]) -> bool:
    """Whether a group failed, or was much slower than the others."""
    return bool(result.problem) or result.bandwidth_gbps < SLOW * reference_gbps(among)
