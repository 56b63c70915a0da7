"""Who is missing, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.ranks import in_words


def absent_ranks(present: Mapping[int, Fingerprint], nnodes: int) -> list[int]:
    """Return the ranks that are not there."""
    return [rank for rank in range(nnodes) if rank not in present]


def describe(absent: Sequence[int], nnodes: int, last_seen_s: Mapping[int, float]) -> str:
    """Say who is absent: ``2 of 16 absent: node 4, node 9; never heard from``.

    ``last_seen_s`` maps the ranks that were here before to how many seconds ago that was.
    """
    seen = [f"node {rank} {last_seen_s[rank]:.0f} s ago" for rank in absent if rank in last_seen_s]
    if any(rank not in last_seen_s for rank in absent):
        seen.append("the others never")
    heard = f"last heard from {', '.join(seen)}" if last_seen_s.keys() & set(absent) else "never heard from"
    return f"{len(absent)} of {nnodes} absent: {in_words(absent)}; {heard}"


def looks_like_processes(present: Mapping[int, Fingerprint], nnodes: int) -> str:
    """Say so when the announced number of nodes is that of the processes, else return an empty text.

    Bare WORLD_SIZE counts nodes here and processes elsewhere: the ranks that came are 0, 1, … without a gap,
    or multiples of their GPUs, and their GPUs make up the number that was announced.
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
    return (
        f"{len(ranks)} nodes came, {nnodes} were announced, and each has {each} GPUs: WORLD_SIZE={nnodes} "
        f"looks like the number of processes, where this launcher expects that of nodes, {len(ranks)}"
    )
