"""How long this node has made no progress. Pure.

Progress is any of: a collective enqueued or completed, output that is not a repeated line, and, for a rank
whose collectives are unknown, CPU time of its main thread unless it stays in the same functions. Once the
collectives of all ranks are known, they decide: lines that differ from earlier ones only in their numbers no
longer count (a retry loop prints its counter), and other lines count only for a limited time. The thresholds
and their reasons: docs/decisions/0014-a-hang-explains-itself.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum

from platform_launch.observe.dumps import RankTrace
from platform_launch.observe.snapshot import Sample, busy_share, has_moved, with_sample

# A main thread that waits in a loop of short sleeps uses less of a core.
BUSY_SHARE = 0.05
# Lines that are remembered to recognise repetitions.
_MOST_LINES = 4096
_CHANGES_BY_ITSELF = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]"  # colours
    r"|\d{4}-\d\d-\d\d|\d\d?(?::\d\d)+(?:[.,]\d+)?"  # dates, times of day, durations of progress bars
    r"|\b\d+(?:\.\d+)?\s?(?:ms|s|sec|secs|second|seconds|min|minutes|h)\b"
    r"|\b\d+(?:\.\d+)?\s?(?:it/s|s/it)\b|\b\d{10}(?:\.\d+)?\b|0x[0-9a-f]+"
)


_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")


class Novelty(IntEnum):
    """How new a text is: not at all, in its numbers, in its words."""

    NONE = 0
    NUMBERS = 1
    WORDS = 2


class NewLines:
    """Distinguishes new lines from repeated ones."""

    def __init__(self) -> None:
        self._known: dict[int, None] = {}
        self._forms: dict[int, None] = {}

    def novelty(self, text: str) -> Novelty:
        """Return how new the newest line of a text is, apart from times and durations."""
        found = Novelty.NONE
        for line in re.split(r"[\r\n]+", text):
            lasting = " ".join(_CHANGES_BY_ITSELF.sub("", line).split())
            is_new = _remember(self._known, lasting)
            has_new_words = _remember(self._forms, _NUMBER.sub("0", lasting))
            if is_new and line.strip():
                found = max(found, Novelty.WORDS if has_new_words else Novelty.NUMBERS)
        return found


def _remember(known: dict[int, None], text: str) -> bool:
    """Remember a text; return whether it is new."""
    key = hash(text)
    is_new = key not in known
    known.pop(key, None)
    known[key] = None
    if len(known) > _MOST_LINES:
        del known[next(iter(known))]
    return is_new


class Progress:
    """When something last moved, on any monotonic clock.

    ``moved_at`` is the last of them, ``because`` is the reason: "start", "output", "collectives" or "cpu";
    ``spoke_at`` is the last progress other than CPU time; ``printed_at`` the last output, progress or not. If
    stacks are sampled, a sample without one is ignored while the last with one is younger than
    ``stack_age_s``. Once all ranks have recorders, output may delay a finding by ``output_delay_s`` at most.
    """

    def __init__(self, now: float, stack_age_s: float = 0.0, output_delay_s: float = float("inf")) -> None:
        self._stack_age_s = stack_age_s
        self._output_delay_s = output_delay_s
        self._collective_at = now
        self.moved_at = self.spoke_at = self.printed_at = now
        self.because = "start"
        self._counts: dict[int, Mapping[str, tuple[int | None, int | None, int]]] = {}
        self._samples: dict[int, list[Sample]] = {}
        self._pids: set[int] = set()
        self._ranks = 0

    def leave_out(self, pause_s: float) -> None:
        """Ignore a pause in which nothing was observed."""
        self.moved_at += pause_s
        self.spoke_at += pause_s
        self.printed_at += pause_s
        self._collective_at += pause_s

    def still_s(self, now: float) -> float:
        """Return how long there has been no progress."""
        return now - self.moved_at

    @property
    def sees_ranks(self) -> bool:
        """Whether the last sample found any rank."""
        return bool(self._pids)

    def output(self, at: float, novelty: Novelty = Novelty.WORDS) -> None:
        """Record new output."""
        self.printed_at = at
        if self._all_have_recorders and (
            novelty < Novelty.WORDS or at - self._collective_at >= self._output_delay_s
        ):
            return
        self._move(at, "output")

    @property
    def _all_have_recorders(self) -> bool:
        return self._ranks > 0 and sum(1 for counts in self._counts.values() if counts) >= self._ranks

    def collectives(self, traces: Mapping[int, RankTrace], now: float, wall: float) -> None:
        """Record the state of the collectives; ``wall`` is the current time on the clock of their
        timestamps.
        """
        for rank, trace in traces.items():
            counts = {
                name: (status.enqueued, status.completed, status.operations)
                for name, status in trace.groups.items()
            }
            if rank in self._counts and counts != self._counts[rank] and counts:
                # They may have moved long ago: the last enqueued operation has a timestamp.
                moved = now - (wall - trace.latest_s) if 0 < trace.latest_s <= wall else now
                self._collective_at = min(now, max(moved, self._collective_at))
                self._move(min(now, max(moved, self.moved_at)), "collectives")
            self._counts[rank] = counts

    def samples(self, samples: Mapping[int, Sample], now: float) -> None:
        """Record what the ranks have used; only those with unknown collectives count."""
        self._ranks = len(samples)
        pids = {sample.pid for sample in samples.values()}
        if pids - self._pids or not pids:
            # processes are still starting
            self._move(max((sample.at for sample in samples.values()), default=now), "start")
            self._pids = pids
        for rank, sample in samples.items():
            if self._counts.get(rank):
                continue
            earlier = self._samples.get(rank, [])
            stacks = [one.at for one in earlier if one.functions is not None]
            if sample.functions is None and stacks and sample.at - stacks[-1] < self._stack_age_s:
                continue
            earlier = self._samples[rank] = with_sample(earlier, sample)
            first = earlier[0]
            busy = busy_share((first, sample))
            if busy is not None and (busy < 0 or (busy >= BUSY_SHARE and self._is_not_in_one_place(earlier))):
                self._move(sample.at, "cpu")
                self._samples[rank] = [sample]

    def _is_not_in_one_place(self, samples: list[Sample]) -> bool:
        """without stacks, assume progress"""
        known = [sample for sample in samples if sample.functions is not None]
        return len(known) < 2 or bool(has_moved(known))

    def _move(self, at: float, because: str) -> None:
        if at < self.moved_at:
            return
        self.moved_at, self.because = at, because
        if because != "cpu":
            self.spoke_at = at
            self._samples.clear()  # earlier samples are irrelevant from now on
