"""Names the rank that makes a job's steps longer, while it runs: on node 0, in a thread.

Once a minute, all nodes report when their ranks reached their collectives. A rank that is very late in most
steps of three consecutive windows is sampled, and reported once; so is its recovery.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Thread

from platform_launch.observe.arrivals import (
    ClockOffset,
    OwnPace,
    RankArrivals,
    RankPace,
    SlowRule,
    Window,
    window,
)
from platform_launch.observe.collectives import ranks_named
from platform_launch.sentences import Sentence, sentence

PERIOD_S = 60.0
# For `inspect`, a single window is enough.
_ASKED_S = 120.0
_ASKED_LATE_STEPS = 0.6
# Share of a rank's samples that a reason must have.
_MOSTLY = 0.5
_THROTTLED_SHARE, _QUEUED_SHARE, _STOLEN_SHARE, _RESENT_SHARE = 0.05, 0.10, 0.05, 0.01
_MANY_DISK_FAULTS_PER_S = 20.0
# How much a slow rank must exceed the others.
_TIMES_THE_OTHERS = 2.0
_MOST_OTHERS = 3


@dataclass(frozen=True)
class NodeArrivals:
    """The arrivals of a node's ranks; ``boot`` names its kernel's boot: containers of one host share a clock.

    ``clock`` is that of the node, as the rendezvous knows it; None if it does not.
    """

    host: str
    boot: str
    ranks: tuple[RankArrivals, ...] = ()
    clock: ClockOffset | None = None


@dataclass(frozen=True)
class RankSamples:
    """Samples of a rank outside of collectives: lines and activities with their counts.

    ``throttled`` and ``queued`` are the shares of time in which its control group was throttled, and in which
    it waited for a processor; ``computed`` is the share in which its main thread ran. ``rival`` is the
    process that used its processors most. ``disk_faults_per_s`` is how often its memory was read back from
    disk. For its node, ``stolen`` is the share of processor time that the hypervisor gave to others, and
    ``resent`` the share of retransmitted TCP segments. ``device`` is what slows its GPU down.
    """

    rank: int
    samples: int
    places: Mapping[str, int] = field(default_factory=dict)
    doing: Mapping[str, int] = field(default_factory=dict)
    throttled: float = 0.0
    queued: float = 0.0
    computed: float = 0.0
    rival: str = ""
    disk_faults_per_s: float = 0.0
    stolen: float = 0.0
    resent: float = 0.0
    device: str = ""


@dataclass(frozen=True)
class SlowFinding:
    """Ranks of one node that make each step longer; ``whole_node`` if these are all of its ranks.

    ``place`` is where they were in ``count`` of ``samples`` moments, the other ranks in ``others`` of theirs;
    ``reason`` is device, throttled, stolen, swapped, queued, resent, data or computing; both are empty if
    unknown. ``share`` and ``what`` are details of the reason.
    """

    ranks: tuple[int, ...]
    node_rank: int
    host: str
    whole_node: bool
    late_s: float
    step_s: float
    late_steps: int
    steps: int
    place: str = ""
    count: int = 0
    samples: int = 0
    others: int = 0
    reason: str = ""
    share: float = 0.0
    what: str = ""

    @property
    def longer(self) -> float:
        """The factor by which each step is longer, minus 1."""
        return self.late_s / max(self.step_s - self.late_s, 1e-6)

    def sentence(self) -> Sentence:
        """Return the report."""
        who = sentence("of-node", who=ranks_named(self.ranks), node=self.node_rank, host=self.host)
        if self.whole_node:
            who = sentence("whole-node", node=self.node_rank, host=self.host)
        report = sentence(
            "makes-longer",
            who=who,
            percent=f"{self.longer:.0%}",
            step=f"{self.step_s:.3g}",
            usual=f"{self.step_s - self.late_s:.3g}",
        )
        if self.place:
            report = sentence(
                "mostly-at",
                what=report,
                frame=self.place,
                count=self.count,
                samples=self.samples,
                others=self.others,
            )
        if self.reason:
            code = f"slow-{self.reason}" + ("-by" if self.reason == "queued" and self.what else "")
            report = sentence(code, what=report, percent=f"{self.share:.0%}", cause=self.what)
        return report

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {**asdict(self), "longer": round(self.longer, 4)}


@dataclass(frozen=True)
class PaceChange:
    """The job's steps became longer than in its first windows, or are normal again."""

    slower: bool
    step_s: float
    usual_s: float


@dataclass(frozen=True)
class NodesArrivals:
    """The arrivals of all nodes in one reading, by node rank, and their clocks."""

    nodes: Mapping[int, NodeArrivals]
    clocks: Mapping[int, ClockOffset]

    def window(self) -> Window:
        """Compare the ranks."""
        node_of = {rank.rank: node for node, seen in self.nodes.items() for rank in seen.ranks}
        return window([rank for seen in self.nodes.values() for rank in seen.ranks], node_of, self.clocks)

    def findings(self, paces: Mapping[int, RankPace]) -> list[SlowFinding]:
        """Return the slow ranks by node."""
        found = []
        for node, seen in sorted(self.nodes.items()):
            every = {rank.rank for rank in seen.ranks}
            slow = sorted(every & set(paces))
            if slow:
                worst = max((paces[rank] for rank in slow), key=lambda pace: pace.late_s)
                whole = len(every) > 1 and set(slow) == every and len(self.nodes) > 1
                found.append(
                    SlowFinding(
                        tuple(slow),
                        node,
                        seen.host,
                        whole,
                        worst.late_s,
                        worst.step_s,
                        worst.late_steps,
                        worst.steps,
                    )
                )
        return found


class SlowRanks:
    """Watches one attempt of a job for slow ranks. Its methods may be called from any thread.

    ``own(since_s)`` returns this node's arrivals, ``ask_others(since_s)`` those of the others by node rank,
    ``sample(ranks)`` samples ranks on any node. ``reported`` is called with each finding when it begins
    (True) and ends (False), ``changed`` with a change of the job's own pace, ``slowed`` with the total time
    that all others have waited for slow ranks. Nothing is reported in the first ``quiet_s``.
    """

    def __init__(
        self,
        node_rank: int,
        own: Callable[[float], NodeArrivals],
        ask_others: Callable[[float], Mapping[int, NodeArrivals]],
        sample: Callable[[Sequence[int]], Sequence[RankSamples]],
        reported: Callable[[SlowFinding, bool], None],
        changed: Callable[[PaceChange], None],
        slowed: Callable[[float], None],
        *,
        quiet_s: float,
        period_s: float = PERIOD_S,
    ) -> None:
        self._node_rank = node_rank
        self._own, self._ask_others, self._sample = own, ask_others, sample
        self._reported, self._changed, self._slowed = reported, changed, slowed
        self._quiet_s, self._period_s = quiet_s, period_s
        self._rule, self._pace = SlowRule(), OwnPace()
        self._found: dict[tuple[int, ...], SlowFinding] = {}
        self._since_s = 0.0
        self._ended = Event()
        self._lost_s = 0.0

    def start(self) -> None:
        """Start watching, in a thread."""
        Thread(target=self._run, name="slow-ranks", daemon=True).start()

    def stop(self) -> None:
        """Stop, without waiting for a running query."""
        self._ended.set()

    def current(self) -> list[SlowFinding]:
        """Return the current findings."""
        return list(self._found.values())

    def find(self) -> tuple[list[SlowFinding], str]:
        """Return the ranks that were slow in the last two minutes, and a code of ``words`` if that is
        unknown.
        """
        if known := self.current():
            return known, ""
        arrived = self._read(time.time() - _ASKED_S)
        seen = arrived.window()
        slow = {
            rank: pace
            for rank, pace in seen.paces.items()
            if pace.is_slow and pace.late_steps >= _ASKED_LATE_STEPS * pace.steps
        }
        return [self._closer(one) for one in arrived.findings(slow)], seen.unknown

    def _run(self) -> None:
        self._since_s = time.time()
        begin = time.monotonic()
        while not self._ended.wait(self._period_s):
            if time.monotonic() - begin >= self._quiet_s:
                self._read_window()

    def _read_window(self) -> None:
        """Read a window, and report what it changes."""
        now_s = time.time()
        arrived = self._read(self._since_s)
        seen = arrived.window()
        if seen.unknown:  # too few steps yet: the next window is longer
            return
        self._since_s = now_s
        before = self._pace.is_slower
        if self._pace.add(seen.step_s):
            self._changed(PaceChange(not before, seen.step_s, self._pace.usual_s))
        begun, ended = self._rule.add(seen.paces)
        slow = self._rule.current
        if slow:
            self._lost_s += max(pace.late_s * pace.steps for pace in slow.values())
            self._slowed(self._lost_s)
        for ranks in [ranks for ranks in self._found if ended & set(ranks)]:
            self._reported(self._found.pop(ranks), False)
        for finding in arrived.findings({rank: slow[rank] for rank in begun}):
            closer = self._closer(finding)
            if closer.reason != "checkpoint" and not self._ended.is_set():
                self._found[closer.ranks] = closer
                self._reported(closer, True)

    def _read(self, since_s: float) -> NodesArrivals:
        own = self._own(since_s)
        nodes = {self._node_rank: own, **self._ask_others(since_s)}
        clocks = {node: seen.clock for node, seen in nodes.items() if seen.clock is not None}
        clocks |= {node: ClockOffset() for node, seen in nodes.items() if seen.boot and seen.boot == own.boot}
        return NodesArrivals(nodes, {**clocks, self._node_rank: ClockOffset()})

    def _closer(self, finding: SlowFinding) -> SlowFinding:
        """Sample a slow rank and some others, and add where it was and why, if known."""
        seen = {one.rank: one for one in self._sample(finding.ranks)}
        slow = [seen[rank] for rank in finding.ranks if rank in seen]
        if not slow:
            return finding
        others = [one for rank, one in seen.items() if rank not in finding.ranks]
        return described(finding, slow[0], others)


def described(finding: SlowFinding, slow: RankSamples, others: Sequence[RankSamples]) -> SlowFinding:
    """Return a finding with the place and the reason that the samples of the slow rank show."""
    known = asdict(finding)
    if slow.places:
        place, count = max(slow.places.items(), key=lambda item: item[1])
        elsewhere = max((one.places.get(place, 0) for one in others), default=0)
        if count >= _MOSTLY * sum(slow.places.values()) and count > elsewhere:
            known |= {"place": place, "count": count, "samples": slow.samples, "others": elsewhere}
    doing = max(slow.doing.items(), key=lambda item: item[1], default=("", 0))

    def stands_out(mine: float, limit: float, usual: float) -> bool:
        return mine >= limit and mine >= _TIMES_THE_OTHERS * usual

    usual_queued = max((one.queued for one in others), default=0.0)
    usual_faults = max((one.disk_faults_per_s for one in others), default=0.0)
    # A property of a whole node explains nothing if other ranks, some on the same node, have it as well.
    usual_stolen = min((one.stolen for one in others), default=0.0)
    usual_resent = min((one.resent for one in others), default=0.0)
    if slow.device:
        known |= {"reason": "device", "what": slow.device}
    elif slow.throttled >= _THROTTLED_SHARE:
        known |= {"reason": "throttled", "share": slow.throttled}
    elif stands_out(slow.stolen, _STOLEN_SHARE, usual_stolen):
        known |= {"reason": "stolen", "share": slow.stolen}
    elif stands_out(slow.disk_faults_per_s, _MANY_DISK_FAULTS_PER_S, usual_faults):
        known |= {"reason": "swapped", "what": f"{slow.disk_faults_per_s:.0f}"}
    elif stands_out(slow.queued, _QUEUED_SHARE, usual_queued):
        known |= {"reason": "queued", "share": slow.queued, "what": slow.rival}
    elif stands_out(slow.resent, _RESENT_SHARE, usual_resent):
        known |= {"reason": "resent", "share": slow.resent}
    elif doing[0] in ("data", "checkpoint") and doing[1] >= _MOSTLY * slow.samples:
        known |= {"reason": doing[0]}
    elif slow.computed >= _MOSTLY:
        known |= {"reason": "computing", "share": slow.computed}
    return SlowFinding(**known)


def chosen_others(ranks: Sequence[int], slow: Sequence[int]) -> list[int]:
    """Return some of the ranks that are not slow, spread over all."""
    rest = [rank for rank in ranks if rank not in slow]
    return rest[:: max(1, len(rest) // _MOST_OTHERS)][:_MOST_OTHERS]


def boot_id() -> str:
    """Return the identity of this kernel's boot; empty if the kernel hides it."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def most_common(counts: Counter[str], most: int = 8) -> dict[str, int]:
    """Return the most frequent of some counts."""
    return dict(counts.most_common(most))
