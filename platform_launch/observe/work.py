"""A rank's work: CPU time and bytes of it and its descendants between two moments. Pure.

This evidence distinguishes a hang from a long step. Answering the launcher's queries is not work, so only the
time between queries counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

# Waiting uses less of a core than this.
WORKING_SHARE = 0.01
# Fewer bytes than this are heartbeats and a line of output now and then.
WORKING_BYTES_PER_S = 8 * 1024.0
# A thread that runs for less than this at a time is only polling. A Python thread that waits for the GIL
# wakes up 200 times a second, for some 0.02 ms each.
_SHORTEST_TURN_S = 0.0001
# A helper (a logger, a monitor) counts as work only if it does more than those of waiting ranks.
_MORE_THAN_WAITING = 2.0


@dataclass(frozen=True)
class Usage:
    """What a process had used at one moment: CPU seconds and bytes.

    ``threads_cpu_s`` is for all threads except the main one, ``threads`` for each live one of them, with its
    number of time slices. ``children`` is that of each living descendant: pid → name, seconds;
    ``reaped_cpu_s`` is that of descendants that have ended. ``moved_bytes`` were read and written by all of
    them. ``sockets`` are the inodes of their sockets, ``socket_bytes`` the bytes that those moved.
    ``main_queued_s`` is how long the main thread waited for a processor.
    """

    main_cpu_s: float = 0.0
    threads_cpu_s: float = 0.0
    children: Mapping[int, tuple[str, float]] = field(default_factory=dict)
    reaped_cpu_s: float = 0.0
    moved_bytes: int = 0
    sockets: frozenset[str] = frozenset()
    socket_bytes: Mapping[str, int] = field(default_factory=dict)
    main_queued_s: float = 0.0
    threads: Mapping[int, tuple[float, int]] = field(default_factory=dict)

    @property
    def children_cpu_s(self) -> float:
        """The CPU time of all descendants so far."""
        return self.reaped_cpu_s + sum(used_s for _, used_s in self.children.values())


@dataclass(frozen=True)
class Work:
    """What a rank did in ``observed_s`` seconds, as shares of a core and bytes per second.

    The share of its main thread excludes the time in which it waited for a processor. ``child`` is the
    descendant that used most, with its name; 0 if none used any.
    """

    observed_s: float
    main: float = 0.0
    threads: float = 0.0
    children: float = 0.0
    bytes_per_s: float = 0.0
    child: int = 0
    child_name: str = ""


class WorkMeter:
    """Adds up what a rank uses while it is not queried, over the last ``window_s`` seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._since: tuple[float, Usage] | None = None
        self._spans: list[tuple[float, Usage]] = []  # seconds, and what was used in them; the newest last

    def begin(self, at: float, usage: Usage) -> None:
        """Start counting: earlier usage may have been for an answer."""
        self._since = (at, usage)

    def end(self, at: float, usage: Usage) -> None:
        """Count what was used since :meth:`begin`."""
        if self._since is None or at <= self._since[0]:
            return
        begin, before = self._since
        self._spans.append((at - begin, _difference(before, usage)))
        self._since = None
        while sum(seconds for seconds, _ in self._spans[1:]) >= self._window_s:
            del self._spans[0]

    def work(self) -> Work | None:
        """Return what was done in the window; None before one is full."""
        observed_s = sum(seconds for seconds, _ in self._spans)
        # the time of queries is left out, and a sample may be a little early
        return _work(self._spans, observed_s) if observed_s >= self._window_s * 0.8 else None


def evidence(work: Work | None, waiting: Sequence[Work], *, waits_in_place: bool) -> str:
    """Return what shows that a rank works: "main", "child", "threads" or "bytes"; empty if nothing does.

    ``waiting`` are ranks that certainly wait: what their helpers do does not count as work.
    ``waits_in_place``: the rank is in a collective or waits for its device, where threads may spin.
    """
    if work is None or waits_in_place:
        return ""
    if work.main >= WORKING_SHARE:
        return "main"
    if work.children >= _enough(WORKING_SHARE, [one.children for one in waiting]):
        return "child"
    if work.threads >= _enough(WORKING_SHARE, [one.threads for one in waiting]):
        return "threads"
    if work.bytes_per_s >= _enough(WORKING_BYTES_PER_S, [one.bytes_per_s for one in waiting]):
        return "bytes"
    return ""


def _enough(least: float, of_waiting: Sequence[float]) -> float:
    return max(least, _MORE_THAN_WAITING * median(of_waiting)) if of_waiting else least


def _polling_s(before: Usage, after: Usage) -> float:
    """Return the CPU time of threads that only poll."""
    total = 0.0
    for thread, (used_s, turns) in after.threads.items():
        used_before_s, turns_before = before.threads.get(thread, (0.0, 0))
        used_s, turns = used_s - used_before_s, turns - turns_before
        if 0 < used_s < turns * _SHORTEST_TURN_S:
            total += used_s
    return total


def _difference(before: Usage, after: Usage) -> Usage:
    moved = after.moved_bytes - before.moved_bytes
    through_sockets = sum(
        max(count - before.socket_bytes.get(inode, 0 if inode not in before.sockets else count), 0)
        for inode, count in after.socket_bytes.items()
    )
    children = {
        pid: (name, max(used_s - before.children.get(pid, ("", 0.0))[1], 0.0))
        for pid, (name, used_s) in after.children.items()
    }
    # A child that ended in between counts once.
    all_children = max(after.children_cpu_s - before.children_cpu_s, 0.0)
    living = sum(used_s for _, used_s in children.values())
    return Usage(
        max(after.main_cpu_s - before.main_cpu_s, 0.0),
        max(after.threads_cpu_s - before.threads_cpu_s - _polling_s(before, after), 0.0),
        children,
        max(all_children - living, 0.0),
        max(moved, 0) + through_sockets,
        main_queued_s=max(after.main_queued_s - before.main_queued_s, 0.0),
    )


def _work(spans: Sequence[tuple[float, Usage]], observed_s: float) -> Work:
    by_child: dict[int, float] = {}
    names: dict[int, str] = {}
    for _, used in spans:
        for pid, (name, used_s) in used.children.items():
            by_child[pid] = by_child.get(pid, 0.0) + used_s
            names[pid] = name
    busiest = max(by_child, key=lambda pid: by_child[pid], default=0)
    if not by_child.get(busiest):
        busiest = 0
    # Separates a computing rank from a waiting one, on a crowded machine too.
    main_cpu_s = sum(used.main_cpu_s for _, used in spans)
    queued_s = sum(used.main_queued_s for _, used in spans)
    return Work(
        observed_s,
        main_cpu_s / max(observed_s - queued_s, main_cpu_s, 1e-3),
        sum(used.threads_cpu_s for _, used in spans) / observed_s,
        sum(used.children_cpu_s for _, used in spans) / observed_s,
        sum(used.moved_bytes for _, used in spans) / observed_s,
        busiest,
        names.get(busiest, ""),
    )
