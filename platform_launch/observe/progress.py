"""When did anything last move on this node? Pure: facts at moments in, a number of seconds out.

Progress is any of: a collective enqueued or completed, output that is not the same line again, and, for a
rank whose collectives nobody can tell, CPU time of its main thread unless it stays in the same functions.
The thresholds and their reasons: docs/decisions/0014-a-hang-explains-itself.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from platform_launch.observe.dumps import RankTrace
from platform_launch.observe.snapshot import Sample, busy_share, has_moved, with_sample

# A main thread that waits in a loop of short sleeps uses less of a core than this.
BUSY_SHARE = 0.05
# How many lines are remembered, to know one that is said again.
_MOST_LINES = 4096
_CHANGES_BY_ITSELF = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]"  # colours
    r"|\d{4}-\d\d-\d\d|\d\d?(?::\d\d)+(?:[.,]\d+)?"  # dates, times of day, durations of progress bars
    r"|\b\d+(?:\.\d+)?\s?(?:ms|s|sec|secs|second|seconds|min|minutes|h)\b"
    r"|\b\d+(?:\.\d+)?\s?(?:it/s|s/it)\b|\b\d{10}(?:\.\d+)?\b|0x[0-9a-f]+"
)


class NewLines:
    """Tells lines that say something new from those that are said again and again."""

    def __init__(self) -> None:
        self._known: dict[int, None] = {}

    def count(self, text: str) -> int:
        """Return how many lines of a text are new, whatever their times and durations."""
        new = 0
        for line in re.split(r"[\r\n]+", text):
            key = hash(" ".join(_CHANGES_BY_ITSELF.sub("", line).split()))
            if line.strip() and key not in self._known:
                new += 1
            self._known.pop(key, None)
            self._known[key] = None
        while len(self._known) > _MOST_LINES:
            del self._known[next(iter(self._known))]
        return new


class Progress:
    """The moments at which something moved, on any clock that only goes forward.

    ``moved_at`` is the last of them, ``because`` in a word why: "start", "output", "collectives" or "cpu";
    ``spoke_at`` the last that was more than CPU time. Where stacks are sampled, a sample without one is not
    judged while the last with one is younger than ``stack_age_s``.
    """

    def __init__(self, now: float, stack_age_s: float = 0.0) -> None:
        self._stack_age_s = stack_age_s
        self.moved_at = self.spoke_at = now
        self.because = "start"
        self._counts: dict[int, Mapping[str, tuple[int | None, int | None]]] = {}
        self._samples: dict[int, list[Sample]] = {}
        self._pids: set[int] = set()

    def still_s(self, now: float) -> float:
        """Return for how long nothing has moved."""
        return now - self.moved_at

    @property
    def sees_ranks(self) -> bool:
        """Whether any process of the training was there when it was looked for last."""
        return bool(self._pids)

    def output(self, at: float) -> None:
        """Note that something new was printed."""
        self._move(at, "output")

    def collectives(self, traces: Mapping[int, tuple[RankTrace, float]], now: float, wall: float) -> None:
        """Note how far the collectives are. ``traces`` say when the last was enqueued, by the wall clock."""
        for rank, (trace, latest) in traces.items():
            counts = {name: (status.enqueued, status.completed) for name, status in trace.groups.items()}
            if rank in self._counts and counts != self._counts[rank] and counts:
                # They may have moved long before this look: the last enqueued operation bears its time.
                moved = now - (wall - latest) if 0 < latest <= wall else now
                self._move(min(now, max(moved, self.moved_at)), "collectives")
            self._counts[rank] = counts

    def samples(self, samples: Mapping[int, Sample], now: float) -> None:
        """Note what the ranks have used, of which only those count whose collectives are unknown."""
        pids = {sample.pid for sample in samples.values()}
        if pids - self._pids or not pids:
            # Processes are still being started.
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
        """Without stacks the benefit of the doubt counts."""
        known = [sample for sample in samples if sample.functions is not None]
        return len(known) < 2 or bool(has_moved(known))

    def _move(self, at: float, because: str) -> None:
        if at < self.moved_at:
            return
        self.moved_at, self.because = at, because
        if because != "cpu":
            self.spoke_at = at
            self._samples.clear()  # where a rank was before says nothing about where it stays from now on
