"""What all ranks are doing now, for one screen: ranks at the same place share a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from platform_launch.observe.activity import activity_of
from platform_launch.observe.collectives import ranks_named
from platform_launch.observe.hang import HangFinding, rank_on
from platform_launch.observe.snapshot import NodeSnapshot, RankSnapshot
from platform_launch.observe.words import english
from platform_launch.sentences import Sentence, Value, sentence

MOST_LINES = 20
"""So many places fit a screen."""
# While the job progresses, others wait for a rank only briefly.
_STILL_S = 10.0


def overview(nodes: Sequence[NodeSnapshot], silent_nodes: Mapping[int, str]) -> list[Sentence]:
    """Return what fits on a terminal: where most ranks are, and the nodes that are silent."""
    lines = place_lines(nodes)
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], sentence("more-places", count=len(lines) - MOST_LINES)]
    lines += [sentence("node-silent", node=node, name=name) for node, name in sorted(silent_nodes.items())]
    return lines


def place_lines(nodes: Sequence[NodeSnapshot]) -> list[Sentence]:
    """Return a line for each place where ranks are, the largest group of ranks first."""
    groups: dict[tuple[_Place, str, str], list[tuple[NodeSnapshot, RankSnapshot]]] = {}
    for node in nodes:
        for rank in node.ranks:
            state = rank.state
            unusual = (state.state, state.wchan if state.state == "D" else "") if state.sentence else ("", "")
            groups.setdefault((_place(rank), *unusual), []).append((node, rank))
    lines = []
    for (place, _, _), members in sorted(groups.items(), key=lambda item: -len(item[1])):
        node, rank = members[0]
        who = ranks_named(rank.rank for _, rank in members)
        if len(members) == 1:
            gpu = node.gpus.get(rank.local_rank or 0, "")
            who = rank_on(rank.rank, node.node_rank, node.host, rank.state.pid, gpu)
        what = place.sentence()
        if rank.state.sentence:
            what = sentence("and", what=rank.state.sentence, more=what)
        lines.append(sentence("place", who=who, what=what))
    return lines


def finding_lines(finding: HangFinding, still_s: float | None) -> list[Sentence]:
    """Return which ranks wait for which, without stacks; nothing if there was progress within a step."""
    if still_s is None or still_s < _STILL_S:
        return []
    return [*finding.headlines(), *(finding.waiting if finding.culprits else ())]


def stack_lines(nodes: Sequence[NodeSnapshot], translated: Callable[[Sentence], str] = english) -> list[str]:
    """Return the stacks of all ranks and of their children; ``translated`` translates everything except
    code.
    """
    lines = []
    for node in nodes:
        for rank in node.ranks:
            state = rank.state
            whose = rank_on(rank.rank, node.node_rank, node.host, state.pid, "")
            lines.append(
                translated(
                    sentence("with-state", what=whose, state=state.sentence) if state.sentence else whose
                )
            )
            for thread in rank.threads:
                named = sentence("thread", name=thread.name) if thread.name else sentence("thread-unnamed")
                lines.append(f"  {translated(sentence('main-thread') if thread.main else named)}")
                lines += [f"    {frame}" for frame in thread.frames]
            if state.kernel_stack:
                lines.append(f"  {translated(sentence('kernel'))}")
                lines += [f"    {function}" for function in state.kernel_stack]
            for child in rank.children:
                own = child.threads[0].own if child.threads else None
                what: Value = child.state.sentence or child.state.wchan
                if own is not None:
                    what = sentence("at", what=what, frame=str(own))
                one = sentence("child-at", pid=child.state.pid, name=child.state.name, what=what)
                lines.append(f"  {translated(one)}")
            lines += [f"  {translated(sentence('not-told', problem=problem))}" for problem in rank.problems]
    return lines


def rarest(nodes: Sequence[NodeSnapshot], most: int) -> list[NodeSnapshot]:
    """Return up to that many ranks, each with its node, the rarest stacks first, and only one of equal
    ones.
    """
    found = [(_place(rank), rank, node) for node in nodes for rank in node.ranks]
    at = Counter(place for place, _, _ in found)
    found.sort(key=lambda one: (at[one[0]], one[1].rank))
    return [replace(node, ranks=(rank,)) for _, rank, node in found[:most]]


class _Place(NamedTuple):
    """A rank's location: ``frame`` is empty if no stack is known; ``ended`` is then the reason."""

    frame: str = ""
    operation: str = ""
    doing: str = ""
    ended: bool = False

    def sentence(self) -> Value:
        if not self.frame:
            return sentence("state-ended" if self.ended else "no-stack")
        if self.operation:
            return sentence("in", what=self.frame, operation=self.operation)
        return sentence("and", what=self.frame, more=sentence(self.doing)) if self.doing else self.frame


def _place(rank: RankSnapshot) -> _Place:
    main = rank.main
    if main is None or main.own is None:
        return _Place(ended=rank.state.ended)
    activity = activity_of(main.frames)
    pending = rank.trace.pending if rank.trace is not None else ()
    if pending:
        return _Place(str(main.own), str(pending[0]))
    return _Place(str(main.own), doing=activity.doing if activity is not None else "")
