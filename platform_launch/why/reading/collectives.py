"""Which rank is behind: one table from the messages of NCCL's watchdogs and start-up barriers.

Each rank that times out prints its progress. Together they show the rank that others wait for: the one with
the lowest number, the one that runs another operation, or the one that does not report at all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from platform_launch.why.lines.line import Line
from platform_launch.why.lines.location_patterns import PART_GROUP
from platform_launch.why.note import Note, note, ranks_named
from platform_launch.why.reading.work import shows_work

_RANK = re.compile(r"\b[Rr]ank:? ?(\d{1,7})\b")
_GROUP = re.compile(r"\[PG (?:ID )?(\S+)(?: PG GUID (\S+?))?[ \]]")
# A terminal may have truncated the name; otherwise it has more after it.
_WORK = re.compile(r"SeqNum=(\d+), OpType=(\w+)(?=[,)])(?:, NumelIn=(\d+))?")
# Operations that all ranks of a group run with equal element counts; and those that only some run.
_ALIKE = frozenset(("ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"))
_BETWEEN_TWO = frozenset(("SEND", "RECV", "COALESCED", "BATCH_ISEND_IRECV", "UNKNOWN"))
_CAUGHT = "Watchdog caught collective operation timeout"
# gloo does not say which operation it was.
_OF_GLOO = "Timed out waiting "
# A report without it was cut off.
_FOR_SO_LONG = re.compile(r"\bran for \d+ m")
_PROGRESS = re.compile(r"last enqueued (?:NCCL )?work: (-?\d+), last completed (?:NCCL )?work: (-?\d+)", re.I)
_BARRIER = re.compile(
    r"store based barrier.*world_size=(\d+)(?:, (?:worker_count|num_workers_joined)=(\d+))?"
)
# Two ranks that torch compares before a collective (TORCH_DISTRIBUTED_DEBUG=DETAIL).
_FINGERPRINT = re.compile(
    r"Rank (\d{1,7}) is running (?:inconsistent )?collective: CollectiveFingerPrint\("
    r"(?:SequenceNumber=\d+(?:, )?)?OpType=(\w+)(?:, TensorShape=\[(\d[\d, ]*)\])?"
)
# Horovod lists the ranks that wait for the others.
_READY = re.compile(r"\[ready ranks: ([\d, ]+)\]")
# Lightning's roll call: one line per process, and one when all are there.
_MEMBER = re.compile(r"GLOBAL_RANK: (\d{1,7}), MEMBER: \d+/(\d{1,7})")
_WORLD = re.compile(
    r"\bWORLD_SIZE[=: ]+(\d{1,7})\b|\b(?:dist_)?world[_ ]size[=: ]+(\d{1,7})\b|\bnranks (\d{1,7})\b"
)
# srun's list of a step's tasks, when it ends the remaining ones some time after the first had ended.
_STILL_RUNS = re.compile(r"srun: (?:StepId=\S+ )?task (\d{1,7}): running$")
_MOST_RANKS = 100_000
# Ranks of one group that run different operations are at most this far apart.
_NEAR = 8
_LINES_OF_WORK = 100


class WaitedFor(NamedTuple):
    """The rank that the others waited for, if it is a single one, and a note about it."""

    rank: int | None = None
    reason: Note | None = None


@dataclass
class _Progress:
    """How far one rank came in one group."""

    sequence: int | None = None
    mixed: bool = False
    operation: str = ""
    size: str = ""
    enqueued: int | None = None
    completed: int | None = None


@dataclass
class Collectives:
    """The table of one set of logs."""

    groups: dict[str, dict[int, _Progress]] = field(default_factory=dict)
    barrier: set[int] = field(default_factory=set)
    world_sizes: Counter[int] = field(default_factory=Counter)
    members: Counter[int] = field(default_factory=Counter)
    members_line: Line | None = None
    # How many ranks the start-up barrier expects and how many came, according to one that waited.
    awaited: int = 0
    counted: int = 0
    # The only task that had not ended when srun ended the step.
    still_runs: int | None = None
    torn_report: int = 0
    cut_off: bool = False
    # Whether there is work above the first collective, if torch numbers it without saying what came before.
    worked: bool = False

    def read(self, line: Line, preceding: Callable[[int], list[bytes]]) -> bool:
        """Read a line; return True if it says nothing else.

        ``preceding`` returns up to so many lines before it.
        """
        text, rank = line.text, line.where.rank
        if member := _MEMBER.search(text):
            self.members[int(member[1])] += 1
            self.world_sizes[int(member[2])] += 1
            self.members_line = line
            return True
        if still := _STILL_RUNS.match(text):
            self.still_runs = int(still[1])
            return False
        if "orld" in text or "WORLD" in text or "nranks" in text:
            for found in _WORLD.finditer(text):
                self.world_sizes[int(next(value for value in found.groups() if value))] += 1
        for ready in _READY.findall(text) if "[ready ranks" in text else ():
            self.barrier.update(int(rank) for rank in ready.replace(",", " ").split())
        if "CollectiveFingerPrint(" in text:
            self._compare(_FINGERPRINT.findall(text))
        work, progress = _WORK.search(text), _PROGRESS.search(text)
        barrier = _BARRIER.search(text) if "barrier" in text else None
        caught = _CAUGHT in text
        of_gloo = _OF_GLOO in text and "ms for " in text
        if not (work or progress or barrier or caught or of_gloo):
            return False
        if rank is None and not PART_GROUP.search(text) and (named := _RANK.search(text)):
            rank = int(named[1])
        if rank is None or len(self.barrier) > _MOST_RANKS:
            return False
        if caught and _FOR_SO_LONG.search(text) is None:
            self.torn_report = line.number
        if barrier:
            self.barrier.add(rank)
            self.awaited = int(barrier[1])
            self.counted = max(self.counted, int(barrier[2] or 0))
            return False
        group = _GROUP.search(text)
        name = (group[2] or group[1]) if group else ""
        row = self.groups.setdefault(name, {}).setdefault(rank, _Progress())
        if work and row.sequence is None:
            row.sequence, row.operation, row.size = int(work[1]), work[2], work[3] or ""
            self.worked |= row.sequence == 1 and any(map(shows_work, preceding(_LINES_OF_WORK)))
        elif work and not name and row.sequence != int(work[1]):
            # Numbers of several groups, whose names this version of torch does not print.
            row.mixed = True
        if progress:
            row.enqueued, row.completed = int(progress[1]), int(progress[2])
        return False

    def _compare(self, fingerprints: Sequence[tuple[str, str, str]]) -> None:
        """Read what a rank says first about itself, then about another one, which may have continued
        since.
        """
        rows = self.groups.setdefault("fingerprints", {})
        for place, (rank, operation, shape) in enumerate(fingerprints):
            if place == 0 or int(rank) not in rows:
                size = str(prod(map(int, shape.split(",")))) if shape else ""
                rows[int(rank)] = _Progress(0, operation=operation, size=size)

    def end(self, lines: int) -> None:
        """Record how many lines the log has: if it ends within a report, others may be missing."""
        self.cut_off = 0 < lines == self.torn_report

    def merge(self, other: Collectives) -> None:
        """Add the table of another log."""
        for name, rows in other.groups.items():
            self.groups.setdefault(name, {}).update(rows)
        self.barrier |= other.barrier
        self.members += other.members
        self.members_line = self.members_line or other.members_line
        self.world_sizes += other.world_sizes
        self.awaited = other.awaited or self.awaited
        self.counted = max(self.counted, other.counted)
        self.worked |= other.worked
        self.cut_off |= other.cut_off
        self.still_runs = other.still_runs if self.still_runs is None else self.still_runs

    def finding(self) -> WaitedFor:
        """Return the rank that others waited for in a collective."""
        for name, rows in sorted(self._named().items(), key=lambda one: -len(one[1])):
            finding = self._behind(name, rows)
            if finding.reason:
                return finding
        return WaitedFor()

    def _named(self) -> dict[str, dict[int, _Progress]]:
        """Return the groups; the only one with a name also with ranks whose line about it was lost."""
        nameless = self.groups.get("", {})
        named = [rows for name, rows in self.groups.items() if name]
        mixed = any(row.mixed for row in nameless.values())
        if len(named) != 1 or not nameless or mixed or nameless.keys() & named[0].keys():
            return self.groups
        return {"": nameless | named[0]}

    def absent(self) -> WaitedFor:
        """Return the ranks that did not arrive where the others wait."""
        came = self.barrier or set(self.members)
        size = max(self._size, max(came, default=-1) + 1)
        missing = sorted(set(range(size)) - came) if size <= _MOST_RANKS else []
        if not came or not missing or len(missing) == size or len(missing) > size - self.counted:
            # None is known, or ranks came whose logs are not here.
            return WaitedFor()
        reason = note("did-not-come", size=size, ranks=ranks_named(missing))
        return WaitedFor(missing[0] if len(missing) == 1 else None, reason)

    def _behind(self, name: str, rows: dict[int, _Progress]) -> WaitedFor:
        enqueued = {rank: row.enqueued for rank, row in rows.items() if row.enqueued is not None}
        # A rank that waits in an operation has started it, and perhaps further ones.
        waiting = {r: row.sequence for r, row in rows.items() if row.sequence is not None and not row.mixed}
        started = waiting | enqueued
        late = _lowest(started)
        if late and enqueued.keys() >= set(late):
            others = max(started.values())
            count = enqueued[late[0]]
            return WaitedFor(
                late[0], note("started-fewer", ranks=ranks_named(late), count=count, others=others)
            )
        sequences = {rank: row.sequence for rank, row in rows.items() if row.sequence is not None}
        operations: dict[str, list[int]] = {}
        for rank, row in rows.items():
            if row.operation:
                operations.setdefault(row.operation, []).append(rank)
        mixed = any(row.mixed for row in rows.values())
        if mixed or not _comparable(sequences, operations):
            sequences, operations = {}, {}
        if late := _lowest(sequences):
            reason = note(
                "timed-out-behind",
                ranks=ranks_named(late),
                number=sequences[late[0]],
                operation=rows[late[0]].operation,
                others=max(sequences.values()),
            )
            return WaitedFor(late[0], reason)
        if len(set(sequences.values())) == 1 and (odd := _unlike(rows, operations, named=bool(name))):
            return odd
        whole = name in ("", "0") or "default" in name
        missing = self._missing(rows) if whole and not self.cut_off else []
        first = bool(sequences) and set(sequences.values()) == {1}
        if missing and (len(missing) == 1 or not first):
            alone = missing[0] if len(missing) == 1 and self.world_sizes else None
            return WaitedFor(alone, note("no-timeout", ranks=ranks_named(missing)))
        size, ranks = self._size, ranks_named(sorted(rows))
        few = whole and not self.cut_off and len(rows) < size and max(rows) < size
        if self._completed_none(rows):
            reason = note("none-completed-of", ranks=ranks, size=size) if few else note("none-completed")
            return WaitedFor(None, reason)
        return WaitedFor()

    @property
    def _size(self) -> int:
        """How many ranks there are, as far as the log shows."""
        return max(self.world_sizes, default=0)

    def _completed_none(self, rows: dict[int, _Progress]) -> bool:
        """Return whether no rank completed the first operation; a single rank must say so itself."""
        if len(rows) > 1:
            return all(row.completed in (-1, 0) or row.sequence == 1 for row in rows.values())
        elsewhere = any((row.completed or 0) > 0 for group in self.groups.values() for row in group.values())
        row = next(iter(rows.values()), _Progress())
        none = row.completed == -1 or (row.completed is None and not row.mixed and not self.worked)
        return not elsewhere and none and row.sequence == 1

    def _missing(self, rows: dict[int, _Progress]) -> list[int]:
        """Return the ranks that report nothing about any group while most others of the job do."""
        reported = {rank for others in self.groups.values() for rank in others}
        size = self._size
        if len(rows) > 1 and (not size or max(reported) >= size):
            size = max(reported) + 1  # a "world size" may count nodes
        missing = sorted(set(range(size)) - reported) if size <= _MOST_RANKS else []
        return missing if 0 < len(missing) <= len(rows) else []


def _unlike(rows: dict[int, _Progress], operations: dict[str, list[int]], *, named: bool) -> WaitedFor | None:
    """Return the rank that ran a different operation from most, or with a different element count, and a
    note.
    """
    by_size = len(operations) == 1 and _ALIKE.issuperset(operations)
    if by_size:
        operation, ranks = operations.popitem()
        for rank in ranks:
            operations.setdefault(f"{operation} NumelIn={rows[rank].size or '?'}", []).append(rank)
    if len(operations) != 2 or _BETWEEN_TWO.intersection(operations):
        return None
    if by_size and not named and min(map(len, operations.values())) > 1:
        return None  # each stage of a pipeline has its own sizes
    (ran, few), (others_ran, many) = sorted(operations.items(), key=lambda one: len(one[1]))
    reason = note(
        "ran-another",
        ranks=ranks_named(sorted(few)),
        operation=ran,
        other_ranks=ranks_named(sorted(many)),
        others=others_ran,
    )
    return WaitedFor(few[0] if len(few) < len(many) else None, reason)


def _comparable(sequences: dict[int, int], operations: dict[str, list[int]]) -> bool:
    """Return whether the numbers are of one sequence: each group, perhaps without a name, counts separately.

    A single rank far behind is late, whatever it waits in, if all others are at one number.
    """
    apart = max(sequences.values(), default=0) - min(sequences.values(), default=0)
    if len(operations) < 2 or apart <= _NEAR:
        return True
    (_, alone), *others = sorted(Counter(sequences.values()).items())
    return alone == 1 and len(others) == 1 and others[0][1] > 1


def _lowest(numbers: dict[int, int]) -> list[int]:
    """Return the ranks that are behind, if these are fewer than half."""
    if len(set(numbers.values())) < 2:
        return []
    least = min(numbers.values())
    late = sorted(rank for rank, number in numbers.items() if number == least)
    return late if len(late) * 2 <= len(numbers) else []
