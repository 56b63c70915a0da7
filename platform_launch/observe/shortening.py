"""Snapshots of bounded size, for what travels between nodes."""

from __future__ import annotations

from dataclasses import replace

from platform_launch.observe.snapshot import NodeSnapshot, RankSnapshot

_MOST_PENDING = 64
_MOST_THREADS = 12
_MOST_FRAMES = 64


def shortened(snapshot: NodeSnapshot) -> NodeSnapshot:
    """Return a snapshot of bounded size: a rank may have a hundred threads, and thousands of operations."""
    return replace(snapshot, ranks=tuple(_shortened(rank) for rank in snapshot.ranks))


def _shortened(rank: RankSnapshot) -> RankSnapshot:
    threads = tuple(replace(one, frames=one.frames[:_MOST_FRAMES]) for one in rank.threads[:_MOST_THREADS])
    trace = rank.trace and replace(rank.trace, pending=rank.trace.pending[:_MOST_PENDING])
    children = tuple(replace(child, threads=child.threads[:1]) for child in rank.children)
    return replace(rank, threads=threads, trace=trace, children=children)
