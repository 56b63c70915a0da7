"""Finds the ranks that the others wait for, from the traces of all ranks.

A rank waits for another when it has enqueued an operation that the other has not enqueued, or that the
other's device has not reached: its completed operations of the same group are fewer. A rank that others wait
for and that waits for nobody is a suspect. A rank that is late only because it waits elsewhere is not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from platform_launch.observe.dumps import Collective, GroupStatus, RankTrace
from platform_launch.observe.words import english
from platform_launch.sentences import Sentence, sentence

_MOST_PARTS = 16
# ``nccl:send 1->0``: the kind, and the peer's number in the group.
_POINT_TO_POINT = re.compile(r"(send|recv) \d+(?:->|<-)(\d+)")


@dataclass(frozen=True)
class Waiting:
    """Ranks that wait in one operation of one group, and those of the group that have not reached it.

    ``behind`` have not enqueued it; ``stopped`` have, and are still in an earlier one; ``differ`` are in an
    operation of another name or shape with the same number; ``others`` lists these.
    """

    operation: Collective
    group: GroupStatus
    ranks: tuple[int, ...]
    behind: tuple[int, ...] = ()
    stopped: tuple[int, ...] = ()
    differ: tuple[int, ...] = ()
    others: tuple[Collective, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "operation": self.operation.name,
            "sequence": self.operation.sequence,
            "shapes": self.operation.shapes,
            "frame": self.operation.frame,
            "group": self.group.name,
            "group_description": self.group.description,
            "group_ranks": sorted(self.group.ranks),
            "came": list(self.ranks),
            "behind": list(self.behind),
            "stopped": list(self.stopped),
            "differ": list(self.differ),
            "other_operations": [
                {"operation": one.name, "shapes": one.shapes, "frame": one.frame} for one in self.others
            ],
        }

    def __str__(self) -> str:
        return english(self.sentence())

    def sentence(self) -> Sentence:
        """Return which ranks wait where, and for which."""
        what = in_group(self.operation, self.group)
        if self.operation.frame:
            what = sentence("called-at", what=what, frame=self.operation.frame)
        # those that differ wait too, but in another operation
        here = [rank for rank in self.ranks if rank not in self.differ] or self.ranks
        waiting = sentence("are-in", who=ranks_named(here), what=what)
        reasons: list[str | Sentence] = [
            sentence(code, who=ranks_named(ranks))
            for code, ranks in (("not-come", self.behind), ("stuck-before", self.stopped))
            if ranks
        ]
        if self.differ:
            other: list[str | Sentence] = [
                sentence("called-at", what=str(one), frame=one.frame) if one.frame else str(one)
                for one in self.others
            ]
            reasons.append(sentence("elsewhere", who=ranks_named(self.differ), operations=other))
        return sentence("waiting-for", waiting=waiting, others=reasons) if reasons else waiting


@dataclass(frozen=True)
class WaitReport:
    """Which ranks wait for which. ``suspect_ranks`` are sorted global ranks; empty if none waits.

    ``circular``: they wait for each other, in operations of several groups.
    """

    suspect_ranks: tuple[int, ...]
    waiting: tuple[Waiting, ...] = ()
    missing_ranks: tuple[int, ...] = ()
    circular: bool = False


DEFAULT_GROUPS = ("", "0")
"""The names that torch gives the group of all ranks."""


def in_group(operation: Collective, group: GroupStatus) -> Sentence:
    """Return an operation with the group it belongs to."""
    if not group.name:
        return sentence("of-all", operation=str(operation))
    described = f" ({group.description})" if group.description else ""
    return sentence("of-group", operation=str(operation), group=f"{group.name}{described}")


def ranks_named(ranks: Iterable[int]) -> Sentence:
    """Name ranks briefly: ``ranks 0-14 and 16``; if there are many scattered ones, only the first."""
    numbers = sorted(set(ranks))
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts: list[str | Sentence] = []
    named = 0
    for run in runs:
        if len(parts) >= _MOST_PARTS:
            return sentence("ranks-more", numbers=parts, more=len(numbers) - named)
        named += len(run)
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
    if len(parts) > 1:
        return sentence("ranks-and", numbers=parts[:-1], last=str(parts[-1]))
    return sentence("ranks" if len(numbers) > 1 else "rank", numbers=parts or "none")


def compare(
    traces: Mapping[int, RankTrace], world_size: int | None = None, unknown: Collection[int] = ()
) -> WaitReport:
    """Compare the traces of a job's ranks.

    ``world_size`` shows which ranks lack a trace; without it, the groups do. A rank without a trace counts as
    missing, except the ``unknown`` ones.
    """
    members = _members(traces)
    everyone = set(traces).union(*(ranks for ranks in members.values() if ranks), range(world_size or 0))
    waits = _Waits()
    waiting: list[Waiting] = []
    for name in sorted(members, key=lambda name: (len(name), name)):
        ranks = members[name] or _assumed_members(name, traces, everyone)
        waiting += _waits_in_group(name, traces, set(ranks) - set(unknown), waits)
    suspects = waits.suspects(traces)
    if not suspects:
        _point_to_point(traces, waits)
        suspects = waits.suspects(traces)
    missing = tuple(sorted(everyone - set(traces) - set(unknown)))
    return WaitReport(tuple(sorted(suspects)), tuple(waiting), missing, _is_circular(suspects, waiting))


def _is_circular(suspects: Collection[int], waiting: Iterable[Waiting]) -> bool:
    """Return whether all suspects wait themselves, in operations of more than one group."""
    groups = {rank: one.group.name for one in waiting for rank in one.ranks if rank in suspects}
    return bool(suspects) and len(groups) == len(suspects) and len({*groups.values()}) > 1


def _members(traces: Mapping[int, RankTrace]) -> dict[str, set[int]]:
    """Return each group's ranks; an empty set if no dump names them."""
    members: dict[str, set[int]] = {}
    for trace in traces.values():
        for name, status in trace.groups.items():
            members.setdefault(name, set()).update(status.ranks)
    return members


def _assumed_members(name: str, traces: Mapping[int, RankTrace], everyone: set[int]) -> set[int]:
    """Return the ranks of a group that no dump describes: all for the default group, otherwise its users."""
    status = next(trace.groups[name] for trace in traces.values() if name in trace.groups)
    if name in DEFAULT_GROUPS or status.description == "default_pg":
        return everyone
    return {rank for rank, trace in traces.items() if name in trace.groups}


@dataclass
class _Waits:
    """Which ranks wait, and which are waited for. Not every pair: thousands of ranks would make millions."""

    waiters: set[int] = field(default_factory=set)
    waited_for: set[int] = field(default_factory=set)

    def add(self, ranks: Iterable[int], others: Collection[int]) -> None:
        """Record that ranks wait for others, if there are any."""
        if others:
            self.waiters.update(ranks)
            self.waited_for.update(others)

    def suspects(self, traces: Mapping[int, RankTrace]) -> set[int]:
        """Return the ranks that others wait for and that wait for nobody; in a ring, those without a trace,
        otherwise the ring.
        """
        sinks = self.waited_for - self.waiters
        if sinks or not self.waited_for:
            return sinks
        return {rank for rank in self.waited_for if rank not in traces} or set(self.waited_for)


@dataclass
class _Stalled:
    """An operation of a group in which ranks wait, and which ranks are missing there."""

    operation: Collective
    ranks: list[int] = field(default_factory=list)
    others: list[Collective] = field(default_factory=list)
    behind: set[int] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)
    differ: set[int] = field(default_factory=set)

    def waiting(self, group: GroupStatus) -> Waiting:
        """Return the result."""
        behind, stopped, differ = (tuple(sorted(one)) for one in (self.behind, self.stopped, self.differ))
        ranks, others = tuple(self.ranks), tuple(self.others)
        return Waiting(self.operation, group, ranks, behind, stopped, differ, others)


def _waits_in_group(
    name: str, traces: Mapping[int, RankTrace], ranks: Collection[int], waits: _Waits
) -> list[Waiting]:
    """Return the operations that ranks of a group wait in; record in ``waits`` which ranks they wait for."""
    oldest = _oldest_pending(name, traces, ranks)
    stalled: dict[int, _Stalled] = {}
    for rank, operation in sorted(oldest.items()):
        stalled.setdefault(operation.sequence, _Stalled(operation)).ranks.append(rank)
    enqueued = _enqueued(name, traces, ranks)
    for sequence, at in stalled.items():
        behind = {rank for rank, last in enqueued.items() if last < sequence}
        at.behind = behind if len(at.ranks) > 1 else behind - set(at.ranks)
        earlier = {rank for rank, one in oldest.items() if one.sequence < sequence}
        at.stopped = earlier - behind
        waits.add(at.ranks, at.stopped)
        if any(oldest[rank].on_gloo and oldest[rank].kind in WITH_A_ROOT for rank in earlier):
            # one of them may have another root, which the recorder does not record
            waits.add(earlier, at.ranks)
        waits.add([rank for rank in at.ranks if behind != {rank}], at.behind)
        _compare_kinds(at, oldest, waits)
    status = next(trace.groups[name] for trace in traces.values() if name in trace.groups)
    if not status.ranks:  # gloo's dumps lack them
        status = replace(status, ranks=tuple(sorted(ranks)))
    return [at.waiting(status) for at in stalled.values()]


def _oldest_pending(
    name: str, traces: Mapping[int, RankTrace], ranks: Collection[int]
) -> dict[int, Collective]:
    """Return the operation of a group that each rank is in, if any."""
    oldest = {}
    for rank in ranks:
        if rank in traces:
            pending = [c for c in traces[rank].pending if c.group == name and not c.point_to_point]
            if pending:
                oldest[rank] = min(pending, key=lambda collective: collective.sequence)
    return oldest


def _enqueued(name: str, traces: Mapping[int, RankTrace], ranks: Collection[int]) -> dict[int, float]:
    """Return the last operation that each rank of a group enqueued, if known."""
    named = any(trace.groups[name].ranks for trace in traces.values() if name in trace.groups)
    found: dict[int, float] = {}
    for rank in ranks:
        status = traces[rank].groups.get(name) if rank in traces else None
        if status is not None and status.enqueued is not None:
            found[rank] = status.enqueued
        elif rank not in traces or not named:
            found[rank] = float("-inf")
    return found


def _compare_kinds(at: _Stalled, oldest: Mapping[int, Collective], waits: _Waits) -> None:
    """Find the ranks whose operation has another name than most, or the same name and another shape."""
    names = {oldest[rank].kind for rank in at.ranks}
    if len(names) == 1 and names <= _SHAPES_MAY_DIFFER:
        return
    kinds = {rank: (oldest[rank].kind, "" if len(names) > 1 else oldest[rank].shapes) for rank in at.ranks}
    counts = Counter(kinds.values())
    if len(counts) == 1:
        return
    most = max(counts.values())
    usual = [kind for kind, count in counts.items() if count == most]
    odd = {rank for rank in at.ranks if kinds[rank] not in usual}
    if len(usual) > 1:  # it is unknown which are right: each waits for those that differ from it
        odd = set(at.ranks)
        waits.add(at.ranks, at.ranks)
    else:
        waits.add(set(at.ranks) - odd, odd)
    at.differ.update(odd)
    first = {kinds[rank]: oldest[rank] for rank in sorted(at.ranks, reverse=True)}
    at.operation = first[usual[0]]
    at.others = [one for kind, one in first.items() if kind != usual[0]]


# In these, the sizes may differ between ranks.
_SHAPES_MAY_DIFFER = frozenset(
    {"all_to_all", "alltoall", "alltoall_base", "all_gather", "gather", "scatter", "ALLGATHER"}
)
# The operations with an argument that distinguishes one rank from the others.
WITH_A_ROOT = frozenset({"broadcast", "reduce", "gather", "scatter"})


def _point_to_point(traces: Mapping[int, RankTrace], waits: _Waits) -> None:
    """Record waits in sends and receives whose peer has not issued the counterpart."""
    pairs: Counter[tuple[str, int, int, str]] = Counter()
    for rank, trace in traces.items():
        for collective in trace.pending:
            match = _POINT_TO_POINT.search(collective.name)
            partner = _global_rank(int(match[2]), trace.groups.get(collective.group)) if match else None
            if match and partner is not None:
                pairs[(collective.group, rank, partner, match[1])] += 1
    opposite = {"send": "recv", "recv": "send"}
    for (group, rank, partner, kind), count in pairs.items():
        if pairs[(group, partner, rank, opposite[kind])] < count:
            waits.add((rank,), (partner,))


def _global_rank(number: int, group: GroupStatus | None) -> int | None:
    """Return the global rank of a member of a group; None if unknown."""
    if group is None or not group.ranks:
        return None if group is None else number
    return group.ranks[number] if number < len(group.ranks) else None
