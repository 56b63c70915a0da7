"""What all ranks are doing now, for one screen: ranks that are at the same place are one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from platform_launch.observe.activity import activity_of
from platform_launch.observe.collectives import ranks_in_words
from platform_launch.observe.hang import HangFinding
from platform_launch.observe.snapshot import NodeSnapshot, RankSnapshot

MOST_LINES = 20
"""So many places fit a screen."""
# While something moves, whoever is waited for now is so for a moment.
_STILL_S = 10.0


def overview(nodes: Sequence[NodeSnapshot], silent_nodes: Mapping[int, str]) -> list[str]:
    """Return what fits a terminal: the places of most ranks, and the nodes that are silent."""
    lines = place_lines(nodes)
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"and {len(lines) - MOST_LINES} more places (--stacks shows all)"]
    lines += [f"node {rank} ({name}) does not answer" for rank, name in sorted(silent_nodes.items())]
    return lines


def place_lines(nodes: Sequence[NodeSnapshot]) -> list[str]:
    """Return a line for each place where ranks are, the largest group of ranks first."""
    groups: dict[tuple[str, str], list[tuple[NodeSnapshot, RankSnapshot]]] = {}
    for node in nodes:
        for rank in node.ranks:
            groups.setdefault((_place(rank), rank.state.in_words), []).append((node, rank))
    lines = []
    for (place, state), members in sorted(groups.items(), key=lambda item: -len(item[1])):
        who = ranks_in_words(rank.rank for _, rank in members)
        if len(members) == 1:
            node, rank = members[0]
            gpu = node.gpus.get(rank.local_rank or 0, "")
            parts = [f"node {node.node_rank}", node.host, f"pid {rank.state.pid}", gpu]
            who += f" ({', '.join(part for part in parts if part)})"
        lines.append(f"{who}: {', '.join(part for part in (state, place) if part)}")
    return lines


def finding_lines(finding: HangFinding, still_s: float | None) -> list[str]:
    """Return who keeps whom waiting, without stacks; nothing where nobody does for longer than a step."""
    if still_s is None or still_s < _STILL_S or not (finding.culprits or finding.waiting):
        return []
    return [*finding.headlines(), *(f"  {waiting}" for waiting in finding.waiting if finding.culprits)]


def stack_lines(nodes: Sequence[NodeSnapshot]) -> list[str]:
    """Return the whole stacks of all ranks and of what they started."""
    lines = []
    for node in nodes:
        for rank in node.ranks:
            state = rank.state
            whose = f"rank {rank.rank} (node {node.node_rank}, {node.host}, pid {state.pid}) {state.in_words}"
            lines.append(whose.rstrip())
            for thread in rank.threads:
                lines.append(f"  {'main thread' if thread.main else f'thread {thread.name}'.strip()}")
                lines += [f"    {frame}" for frame in thread.frames]
            if state.kernel_stack:
                lines.append("  kernel")
                lines += [f"    {function}" for function in state.kernel_stack]
            for child in rank.children:
                own = child.threads[0].own if child.threads else None
                at = f" at {own}" if own is not None else ""
                what = child.state.in_words or child.state.wchan
                lines.append(f"  child {child.state.pid} ({child.state.name}) {what}{at}")
            lines += [f"  not known: {problem}" for problem in rank.problems]
    return lines


def rarest(nodes: Sequence[NodeSnapshot], most: int) -> list[NodeSnapshot]:
    """Return so many ranks, each with its node, the rarest places first: of thousands one tells all."""
    found = [(_place(rank), rank, node) for node in nodes for rank in node.ranks]
    at = Counter(place for place, _, _ in found)
    found.sort(key=lambda one: (at[one[0]], one[1].rank))
    return [replace(node, ranks=(rank,)) for _, rank, node in found[:most]]


def _place(rank: RankSnapshot) -> str:
    main = rank.main
    if main is None or main.own is None:
        return "ended" if rank.state.gone else "no stack"
    activity = activity_of(main.frames)
    pending = rank.trace.pending if rank.trace is not None else ()
    doing = f"in {pending[0]}" if pending else activity.words if activity is not None else ""
    return f"{main.own}{f', {doing}' if doing else ''}"
