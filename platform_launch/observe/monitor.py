"""Watches the job's processes on one node for progress, in a thread; finds the stuck rank if nothing moves.

One node of a job leads. When it has seen no progress for long, it queries the others. Only if none of them
has made progress either, all ranks are examined. The other nodes receive the finding. A monitor that fails
reports that once and stops; the job is not affected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread

from platform_launch.events import marked
from platform_launch.observe.hang import FindingKind, HangFinding, judge
from platform_launch.observe.node_probe import NodeProbe
from platform_launch.observe.progress import NewLines, Progress
from platform_launch.observe.snapshot import NodeSnapshot

# Reading /proc and the end of the log is cheap; querying the recorders locks them for a moment.
_LOOK_S = 5.0
ASK_S = 15.0
# After this long, evidence of work is collected, for `inspect`.
_QUIET_S = 10.0


def work_window_s(hang_after_s: float) -> float:
    """Return the time over which evidence of work is collected: half of a silence, but 10 s if that fits."""
    return max(hang_after_s / 2, min(10.0, hang_after_s * 2 / 3)) if hang_after_s < float("inf") else 10.0


# How long the others may take to examine their ranks and to answer over the rendezvous.
ANSWER_LIMIT_S = 8.0
# A launcher that is this late was stopped.
_PAUSE_S = 5.0
_LONGEST_READ = 1024 * 1024
# While a job progresses or prints, its recorders are queried this often within --hang-after.
_ASKED_WHILE_MOVING = 3
# New output without new collectives counts for this many times --hang-after.
_OUTPUT_DELAYS = 3
# A job whose suspect works is examined again this often within --hang-after, because it may get stuck after
# all.
_JUDGED_WHILE_BUSY = 4
# The nodes see the last step at slightly different times.
_ABOUT_AS_LONG = 0.6


@dataclass(frozen=True)
class NodeReply:
    """A node's answer: how long it has made no progress and, if that is long, its snapshot."""

    still_s: float
    snapshot: NodeSnapshot | None = None


@dataclass(frozen=True)
class Replies:
    """The answers of the other nodes by rank, and those that gave none: rank → name."""

    given: Mapping[int, NodeReply] = field(default_factory=dict)
    silent: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HangReport:
    """No node has made progress for ``still_s``; ``nodes`` is what all ranks were doing.

    Reports of one hang have the same ``hang``: how many hangs the job has come out of before.
    """

    still_s: float
    finding: HangFinding
    nodes: tuple[NodeSnapshot, ...] = ()
    hang: int = 0


class HangMonitor:
    """Watches one attempt of a job. Its methods may be called from any thread.

    ``ask_others(still_s, limit_s)`` requests a reply from all other nodes; those without progress for
    ``still_s`` send a snapshot. ``reported`` is called with each finding, ``resumed`` with the seconds
    without progress when the job continues after one, ``failed`` with the problem that stops the monitor.
    Only a monitor that ``leads`` looks for hangs.
    """

    def __init__(
        self,
        probe: NodeProbe,
        log: Path | None,
        *,
        world_size: int,
        hang_after_s: float,
        leads: bool,
        ask_others: Callable[[float, float], Replies],
        reported: Callable[[HangReport], None],
        resumed: Callable[[float], None],
        failed: Callable[[str], None],
    ) -> None:
        self._probe = probe
        self._log = log
        self._position = 0
        self._world_size = world_size
        self._hang_after_s = hang_after_s
        self._look_s = min(_LOOK_S, hang_after_s / 10)
        self._leads = leads
        self._ask_others = ask_others
        self._reported, self._resumed, self._failed = reported, resumed, failed
        self._lines = NewLines()
        now = time.monotonic()
        self._progress = Progress(now, hang_after_s / 4, _OUTPUT_DELAYS * hang_after_s)
        self._queried_at = self._sampled_at = self._looked_at = now
        self._ran_at = now
        self._hang = 0  # see HangReport
        self._known_still_s = 0.0  # of the last finding, 0 if there is none
        self._known_kind: FindingKind | None = None
        self._report_at_s = hang_after_s
        self._lock = Lock()
        self._ended = Event()
        self._thread = Thread(target=self._run, name="hang-monitor", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        if self._log is not None:
            with suppress(OSError):  # none yet, or not writable
                self._position = self._log.stat().st_size
        self._thread.start()

    def stop(self) -> None:
        """Stop, without waiting for a running query."""
        self._ended.set()

    def reply(self, still_s: float) -> NodeReply:
        """Answer another node's ``ask_others``; with 0, always with a snapshot."""
        with self._lock:
            self._check(time.monotonic(), thoroughly=True)
            still = self._progress.still_s(time.monotonic())
            return NodeReply(still, self._probe.snapshot() if still >= still_s else None)

    def still_s(self, within_s: float) -> float | None:
        """Return how long this node has made no progress, None while no rank is visible.

        Progress within the last ``within_s`` may be missed. Does not wait for a running examination, which
        may take half a minute.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._leave_out_pause()
                now = time.monotonic()
                if self._progress.still_s(now) >= within_s and now - self._looked_at >= within_s / 4:
                    self._check(now, thoroughly=now - self._queried_at >= within_s)
            finally:
                self._lock.release()
        return self._progress.still_s(time.monotonic()) if self._progress.sees_ranks else None

    def record_finding(self, report: HangReport) -> None:
        """Record what another node found, so that this node notices when the job continues.

        A report of another hang means that the job continued in between, although this node did not see it.
        """
        if self._known_still_s and report.hang != self._hang:
            self._resumed(self._known_still_s)
        self._hang, self._known_still_s = report.hang, report.still_s

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._look_s):
                with self._lock:
                    self._leave_out_pause()
                    self._check(time.monotonic())
                still = self._progress.still_s(time.monotonic())
                if self._known_still_s and still < self._known_still_s:
                    self._resumed(self._known_still_s)
                    self._hang += 1
                    self._known_still_s, self._known_kind = 0.0, None
                    self._report_at_s = self._hang_after_s
                if self._leads and still >= self._report_at_s:
                    self._conclude()
        except Exception as error:  # whatever it is, the job continues
            # what it observes disappears as the job ends
            if not self._ended.is_set():
                self._failed(f"{type(error).__name__}: {error}")

    def _leave_out_pause(self) -> None:
        """Do not count the time in which this launcher was stopped, because its processes probably were,
        too.
        """
        now = time.monotonic()
        pause_s = now - self._ran_at
        if pause_s >= self._look_s + _PAUSE_S:
            self._progress.leave_out(pause_s)
        self._ran_at = now

    def _check(self, now: float, *, thoroughly: bool = False) -> None:
        """Read what is new on this node."""
        before, self._looked_at = self._progress.moved_at, now
        if novelty := self._lines.novelty(self._new_output()):
            self._progress.output(now, novelty)
        still = self._progress.still_s(now)
        ask_s = min(ASK_S, self._hang_after_s / 4)
        quiet_s = now - self._progress.spoke_at
        moves = now - max(self._progress.spoke_at, self._progress.printed_at) < ask_s
        due_s = max(ask_s, self._hang_after_s / _ASKED_WHILE_MOVING) if moves else ask_s
        due = now - self._queried_at >= due_s
        with self._evidence(still, now - max(self._progress.spoke_at, self._progress.printed_at)):
            if thoroughly or due or (still >= self._report_at_s and now - self._queried_at >= ask_s / 4):
                self._queried_at = now
                self._progress.collectives(self._probe.collectives(), now, time.time())
            # stacks only if it is quiet already, because they cost a process a moment
            stacks = quiet_s >= self._hang_after_s / 2 and now - self._sampled_at >= self._hang_after_s / 10
            if stacks:
                self._sampled_at = now
            self._progress.samples(self._probe.sample(stacks=stacks), now)
        if self._progress.moved_at > before:
            self._probe.forget_samples()
            self._probe.forget_work()  # earlier work says nothing about a silence that begins now
        self._ran_at = time.monotonic()  # this may take long

    def _evidence(self, still_s: float, quiet_s: float) -> AbstractContextManager[None]:
        """Measure the work of the ranks, unless the job makes progress, because then it is not needed
        soon.
        """
        soon_s = self._hang_after_s - work_window_s(self._hang_after_s) - 3 * self._look_s
        if still_s >= soon_s or quiet_s >= min(_QUIET_S, self._hang_after_s / 4):
            return self._probe.asking()
        self._probe.forget_work()
        return nullcontext()

    def _conclude(self) -> None:
        """Check whether all nodes are without progress, and which rank is stuck."""
        with self._lock:
            self._check(time.monotonic(), thoroughly=True)
        still = self._progress.still_s(time.monotonic())
        if still < self._report_at_s:
            return
        replies = self._ask_others(self._hang_after_s * _ABOUT_AS_LONG, ANSWER_LIMIT_S)
        moving = [reply.still_s for reply in replies.given.values() if reply.snapshot is None]
        if moving:
            # A rank works: check again later.
            self._report_at_s = still + max(self._hang_after_s - min(moving), self._hang_after_s / 10)
            return
        with self._lock:
            nodes = [self._probe.snapshot()]
        if self._ended.is_set():
            return
        nodes += [reply.snapshot for reply in replies.given.values() if reply.snapshot is not None]
        nodes.sort(key=lambda node: node.node_rank)
        still = self._progress.still_s(time.monotonic())
        finding = judge(nodes, self._world_size, replies.silent)
        if finding.kind is FindingKind.BUSY:
            # It is reported as rarely as a hang, but checked more often.
            self._report_at_s = still + self._hang_after_s / _JUDGED_WHILE_BUSY
            if self._known_kind is FindingKind.BUSY and still < self._known_still_s * 2:
                return
        else:
            self._report_at_s = max(still * 2, self._report_at_s)
        self._known_still_s, self._known_kind = still, finding.kind
        self._reported(HangReport(still, finding, tuple(nodes), self._hang))

    def _new_output(self) -> str:
        if self._log is None:
            return ""
        try:
            with self._log.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(self._position, size - _LONGEST_READ))
                self._position = size
                return _of_the_training(file.read(_LONGEST_READ).decode(errors="replace"))
        except OSError:
            return ""


def _of_the_training(text: str) -> str:
    """Remove the launcher's own lines from the log."""
    return "\n".join(line for line in text.splitlines() if marked(_without_prefix(line)) is None)


def _without_prefix(line: str) -> str:
    found = line.split("] ", 1)
    return found[1] if line.startswith("[node ") and len(found) == 2 else line
