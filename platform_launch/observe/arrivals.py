"""When each rank reached each collective → which rank makes the steps longer. Pure.

A rank's lateness at an operation is its arrival minus the lower median of its group. Operations that overlap
(buckets that are reduced during the backward pass) show the same lateness again, so only the last one of each
such round counts. A step is the time between two operations of the rarest kind that is frequent enough. For
the rules and the data they were tested on, see docs/decisions/0014-a-hang-explains-itself.md.
"""

from __future__ import annotations

import base64
import binascii
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, median_low

# With fewer steps or less time, a difference may be chance.
LEAST_STEPS = 20
LEAST_S = 30.0
# Smaller lateness is not worth a closer look.
SLOW_SHARE, CLEAR_SHARE = 0.10, 0.05
_LATE_STEPS = 0.5
# Lateness must exceed the possible difference of the nodes' clocks by this factor.
_CLOCK_ERRORS = 3.0
_MOST_OPERATIONS = 2000


@dataclass(frozen=True)
class GroupArrivals:
    """When a rank reached the operations of one group, packed for transfer.

    Each operation has its sequence number, its kind (an index of ``kinds``), when the rank enqueued it
    (microseconds after ``base_s``, a time.time()), and its duration on the device in microseconds, 0 if
    unknown.
    """

    group: str
    base_s: float
    kinds: tuple[str, ...]
    packed: str

    @staticmethod
    def of(group: str, operations: Sequence[tuple[int, str, float, float]]) -> GroupArrivals:
        """Pack operations: sequence number, kind, when they were enqueued, and their duration in seconds."""
        operations = operations[-_MOST_OPERATIONS:]
        base_s = min((at_s for _, _, at_s, _ in operations), default=0.0)
        kinds = {
            kind: number for number, kind in enumerate(dict.fromkeys(kind for _, kind, _, _ in operations))
        }
        numbers = array("q")
        for sequence, kind, at_s, duration_s in operations:
            numbers.extend((sequence, kinds[kind], round((at_s - base_s) * 1e6), round(duration_s * 1e6)))
        return GroupArrivals(group, base_s, tuple(kinds), base64.b64encode(numbers.tobytes()).decode())

    def operations(self) -> list[tuple[int, str, float, float]]:
        """Return the operations; none if the packed data is malformed."""
        numbers = array("q")
        try:
            numbers.frombytes(base64.b64decode(self.packed, validate=True))
        except (binascii.Error, ValueError):
            return []
        fours = zip(*(iter(numbers[: _MOST_OPERATIONS * 4]),) * 4, strict=False)
        return [
            (sequence, self.kinds[kind], self.base_s + at_us / 1e6, duration_us / 1e6)
            for sequence, kind, at_us, duration_us in fours
            if 0 <= kind < len(self.kinds)
        ]


@dataclass(frozen=True)
class RankArrivals:
    """The arrivals of one rank."""

    rank: int
    groups: tuple[GroupArrivals, ...] = ()


@dataclass(frozen=True)
class ClockOffset:
    """How far a node's clock is ahead of that of node 0, and the maximum error, in seconds."""

    offset_s: float = 0.0
    error_s: float = 0.0


@dataclass(frozen=True)
class RankPace:
    """How late a rank is in one window: by ``late_s`` in the median step of ``step_s``, in so many steps."""

    rank: int
    late_s: float
    step_s: float
    late_steps: int
    steps: int

    @property
    def share(self) -> float:
        """The share of a step that the others wait for it."""
        return self.late_s / self.step_s if self.step_s else 0.0

    @property
    def longer(self) -> float:
        """The factor by which it makes each step longer, minus 1."""
        return self.late_s / max(self.step_s - self.late_s, 1e-6)

    @property
    def is_slow(self) -> bool:
        """Whether it is late by much, and in most steps."""
        return self.share >= SLOW_SHARE and self.late_steps >= _LATE_STEPS * self.steps


@dataclass(frozen=True)
class Window:
    """The result of one window: the pace of each rank, by rank, and the median step.

    ``unknown`` is why there is no result, as a code of ``words``; empty if there is one.
    """

    paces: Mapping[int, RankPace] = field(default_factory=dict)
    step_s: float = 0.0
    steps: int = 0
    unknown: str = ""


@dataclass(frozen=True)
class _Operation:
    """One operation that all members of a group reached: when each of them did, on node 0's clock."""

    sequence: int
    kind: str
    at_s: Mapping[int, float]
    on_device: bool

    @property
    def reference_s(self) -> float:
        return median_low(self.at_s.values())


def window(
    ranks: Sequence[RankArrivals], node_of: Mapping[int, int], clocks: Mapping[int, ClockOffset]
) -> Window:
    """Compare the ranks of each group. ``clocks`` are by node; a node without one is compared with itself."""
    groups: dict[str, dict[int, list[tuple[int, str, float, float]]]] = {}
    for rank in ranks:
        for group in rank.groups:
            groups.setdefault(group.group, {})[rank.rank] = group.operations()
    found: dict[int, RankPace] = {}
    step_s, steps, unknown = 0.0, 0, "too-few-steps"
    for members in groups.values():
        for some in _comparable(members, node_of, clocks):
            operations = _common(some, node_of, clocks)
            if isinstance(operations, str):
                unknown = operations
                continue
            paces = _paces(operations)
            for pace in paces:
                if pace.rank not in found or pace.share > found[pace.rank].share:
                    found[pace.rank] = pace
            if paces and paces[0].steps > steps:
                step_s, steps = paces[0].step_s, paces[0].steps
    # ignore lateness that the clocks may explain
    known = {
        rank: pace
        if _is_beyond_clocks(pace, rank, node_of, clocks)
        else replace(pace, late_s=0.0, late_steps=0)
        for rank, pace in found.items()
    }
    return Window(known, step_s, steps, "" if found else unknown)


def _comparable(
    members: Mapping[int, list[tuple[int, str, float, float]]],
    node_of: Mapping[int, int],
    clocks: Mapping[int, ClockOffset],
) -> list[dict[int, list[tuple[int, str, float, float]]]]:
    """Split a group into ranks with comparable clocks; durations on a device need no clock."""
    if all(duration_s > 0 for operations in members.values() for *_, duration_s in operations):
        return [dict(members)] if len(members) > 1 else []
    parts: dict[object, dict[int, list[tuple[int, str, float, float]]]] = {}
    for rank, operations in members.items():
        node = node_of[rank]
        parts.setdefault("known" if node in clocks else node, {})[rank] = operations
    return [part for part in parts.values() if len(part) > 1]


def _common(
    members: Mapping[int, list[tuple[int, str, float, float]]],
    node_of: Mapping[int, int],
    clocks: Mapping[int, ClockOffset],
) -> list[_Operation] | str:
    """Return the operations that all members reached, in order; a code of ``words`` if there are none."""
    came: dict[tuple[int, str], dict[int, tuple[float, float]]] = {}
    for rank, operations in members.items():
        offset_s = clocks.get(node_of[rank], ClockOffset()).offset_s
        for sequence, kind, at_s, duration_s in operations:
            came.setdefault((sequence, kind), {})[rank] = (at_s - offset_s, duration_s)
    whole = {key: at for key, at in sorted(came.items()) if len(at) == len(members)}
    found = []
    for (sequence, kind), at in whole.items():
        if all(duration_s > 0 for _, duration_s in at.values()):
            # All leave it at the same time, so the rank that was in it for the shortest time was last.
            end_s = median_low(at_s for at_s, _ in at.values()) + median_low(d for _, d in at.values())
            came_s = {rank: end_s - duration_s for rank, (_, duration_s) in at.items()}
            found.append(_Operation(sequence, kind, came_s, on_device=True))
        elif not kind.startswith("nccl"):
            found.append(
                _Operation(sequence, kind, {r: at_s for r, (at_s, _) in at.items()}, on_device=False)
            )
    if whole and not found:
        return "no-device-times"
    return found


def _paces(operations: Sequence[_Operation]) -> list[RankPace]:
    """Return how late each rank of one group is; nothing if there are too few steps."""
    counts = Counter(operation.kind for operation in operations)
    often = [(count, kind) for kind, count in counts.items() if count > LEAST_STEPS]
    if not often:
        return []
    kind = min(often)[1]
    late: list[dict[int, float]] = []
    lengths_s: list[float] = []
    current: dict[int, float] | None = None
    begin_s = 0.0
    for at, operation in enumerate(operations):
        if operation.kind == kind:
            if current is not None:
                late.append(current)
                lengths_s.append(operation.reference_s - begin_s)
            current, begin_s = {}, operation.reference_s
        if current is not None and _ends_a_round(operation, operations[at + 1 : at + 2]):
            for rank, at_s in operation.at_s.items():
                current[rank] = current.get(rank, 0.0) + max(at_s - operation.reference_s, 0.0)
    if sum(lengths_s) < LEAST_S or len(lengths_s) < LEAST_STEPS:
        return []
    step_s = median(lengths_s)
    paces = []
    # Every rank is sometimes late by chance: only the excess over the others counts.
    usual_s = [median_low(step.values()) if step else 0.0 for step in late]
    for rank in sorted(operations[0].at_s):
        over_s = [step.get(rank, 0.0) - usual for step, usual in zip(late, usual_s, strict=True)]
        late_steps = sum(1 for one in over_s if one >= SLOW_SHARE * step_s)
        paces.append(RankPace(rank, max(median(over_s), 0.0), step_s, late_steps, len(late)))
    return paces


def _ends_a_round(operation: _Operation, following: Iterable[_Operation]) -> bool:
    """Return whether all ranks reached an operation before any reached the next one."""
    return all(
        operation.on_device or min(after.at_s.values()) >= max(operation.at_s.values()) for after in following
    )


def _is_beyond_clocks(
    pace: RankPace, rank: int, node_of: Mapping[int, int], clocks: Mapping[int, ClockOffset]
) -> bool:
    own = clocks.get(node_of[rank])
    if own is None:  # compared with its own node alone
        return True
    others = [clock.error_s for node, clock in clocks.items() if node != node_of[rank]]
    return pace.late_s == 0.0 or pace.late_s >= _CLOCK_ERRORS * (own.error_s + min(others, default=0.0))


class SlowRule:
    """Decides which ranks are slow from consecutive windows: three in a row begin it, three end it."""

    def __init__(self, in_a_row: int = 3) -> None:
        self._in_a_row = in_a_row
        self._slow: dict[int, int] = {}
        self._clear: dict[int, int] = {}
        self.current: dict[int, RankPace] = {}

    def add(self, paces: Mapping[int, RankPace]) -> tuple[set[int], set[int]]:
        """Process the next window; return the ranks that became slow, and those that no longer are."""
        begun, ended = set(), set()
        for rank, pace in paces.items():
            self._slow[rank] = self._slow.get(rank, 0) + 1 if pace.is_slow else 0
            self._clear[rank] = self._clear.get(rank, 0) + 1 if pace.share < CLEAR_SHARE else 0
            if rank in self.current:
                self.current[rank] = pace
                if self._clear[rank] >= self._in_a_row:
                    del self.current[rank]
                    ended.add(rank)
            elif self._slow[rank] >= self._in_a_row:
                self.current[rank] = pace
                begun.add(rank)
        return begun, ended


class OwnPace:
    """Detects from a job's step times that it has become slower than at first."""

    def __init__(self, first: int = 6, in_a_row: int = 3) -> None:
        self._first, self._in_a_row = first, in_a_row
        self._usual: list[float] = []
        self._last: list[float] = []
        self.is_slower = False

    @property
    def usual_s(self) -> float:
        """The median step of the first windows."""
        return median(self._usual) if self._usual else 0.0

    def add(self, step_s: float) -> bool:
        """Add the median step of the next window; return whether ``is_slower`` changed."""
        if len(self._usual) < self._first:
            self._usual.append(step_s)
            return False
        self._last = [*self._last, step_s][-self._in_a_row :]
        if len(self._last) < self._in_a_row:
            return False
        # slower than ever before, by more than the spread of these windows
        limit_s = max(self._usual) + (max(self._usual) - min(self._usual)) + SLOW_SHARE * self.usual_s
        slower = min(self._last) > limit_s
        over = max(self._last) <= max(self._usual) + CLEAR_SHARE * self.usual_s
        before, self.is_slower = self.is_slower, slower or (self.is_slower and not over)
        return self.is_slower != before
