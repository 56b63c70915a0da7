"""Watches the job's processes on one node for progress, in a thread; finds the stuck rank if nothing moves.

One node of a job leads: when nothing has moved on it for long, it asks the others, and only if none of them
has moved either all are looked at, and judged. The others answer, and hear what was found. A monitor that
fails reports that once and then stops: the job never notices it.
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

# Reading /proc and the end of the log costs next to nothing; asking the recorders locks them for a moment.
_LOOK_S = 5.0
ASK_S = 15.0
# After this the evidence of work is collected, for who asks what the job is doing.
_QUIET_S = 10.0


def work_window_s(hang_after_s: float) -> float:
    """Return the time over which evidence of work is taken: half of a silence, and 10 s if that fits in."""
    return max(hang_after_s / 2, min(10.0, hang_after_s * 2 / 3)) if hang_after_s < float("inf") else 10.0


# How long the others may take to look at their ranks and to answer over the rendezvous.
ANSWER_LIMIT_S = 8.0
# A launcher that is late by this much was stopped.
_PAUSE_S = 5.0
_LONGEST_READ = 1024 * 1024
# While a job moves or prints, its recorders are asked this often in the time that makes a hang.
_ASKED_WHILE_MOVING = 3
# For so many times that time, new output counts although no collective moves.
_OUTPUT_DELAYS = 3
# A job whose suspect works is judged again this often in that time: it may get stuck after all.
_JUDGED_WHILE_BUSY = 4
# The other nodes see the last step a moment earlier or later.
_ABOUT_AS_LONG = 0.6


@dataclass(frozen=True)
class NodeReply:
    """A node's answer: for how long nothing has moved there and, if that is long, its snapshot."""

    still_s: float
    snapshot: NodeSnapshot | None = None


@dataclass(frozen=True)
class Replies:
    """The answers of the other nodes by rank, and those that gave none: rank → name."""

    given: Mapping[int, NodeReply] = field(default_factory=dict)
    silent: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HangReport:
    """Nothing has moved anywhere for ``still_s``; ``nodes`` is what all ranks were doing."""

    still_s: float
    finding: HangFinding
    nodes: tuple[NodeSnapshot, ...] = ()


class HangMonitor:
    """Watches one start of a training. Its methods may be called from any thread.

    ``ask_others(still_s, limit_s)`` asks all other nodes for a reply; those that have been still for so long
    send a snapshot.
    ``reported`` hears of each finding, ``resumed`` for how long nothing had moved when it goes on after one,
    ``failed`` what keeps the monitor from going on. Only a monitor that ``leads`` looks for hangs by itself.
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
        self._known_still_s = 0.0  # of the last finding, 0 where there is none
        self._known_kind: FindingKind | None = None
        self._report_at_s = hang_after_s
        self._lock = Lock()
        self._ended = Event()
        self._thread = Thread(target=self._run, name="hang-monitor", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        if self._log is not None:
            with suppress(OSError):  # none yet, or none that may be written
                self._position = self._log.stat().st_size
        self._thread.start()

    def stop(self) -> None:
        """End; what is being asked at the moment is not waited for."""
        self._ended.set()

    def reply(self, still_s: float) -> NodeReply:
        """Answer another node, which asks as ``ask_others``; 0 asks for a snapshot in any case."""
        with self._lock:
            self._check(time.monotonic(), thoroughly=True)
            still = self._progress.still_s(time.monotonic())
            return NodeReply(still, self._probe.snapshot() if still >= still_s else None)

    def still_s(self, within_s: float) -> float | None:
        """Return for how long nothing has moved here, None while no rank is seen.

        What moved in the last ``within_s`` may be missed, and nothing that moved before. Whoever looks at
        the moment is not waited for: to see all that a rank started takes half a minute where that is stuck.
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

        A shorter time than the last means that it went on in between, though it was not seen here.
        """
        if report.still_s < self._known_still_s:
            self._resumed(self._known_still_s)
        self._known_still_s = report.still_s

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._look_s):
                with self._lock:
                    self._leave_out_pause()
                    self._check(time.monotonic())
                still = self._progress.still_s(time.monotonic())
                if self._known_still_s and still < self._known_still_s:
                    self._resumed(self._known_still_s)
                    self._known_still_s, self._known_kind = 0.0, None
                    self._report_at_s = self._hang_after_s
                if self._leads and still >= self._report_at_s:
                    self._conclude()
        except Exception as error:  # whatever it is, the job continues
            # What it looks at goes away as the training ends.
            if not self._ended.is_set():
                self._failed(f"{type(error).__name__}: {error}")

    def _leave_out_pause(self) -> None:
        """Do not count the time for which this launcher was stopped: its processes probably were, too."""
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
            # Stacks only if it is quiet already: to give them costs a process a moment.
            stacks = quiet_s >= self._hang_after_s / 2 and now - self._sampled_at >= self._hang_after_s / 10
            if stacks:
                self._sampled_at = now
            self._progress.samples(self._probe.sample(stacks=stacks), now)
        if self._progress.moved_at > before:
            self._probe.forget_samples()
            self._probe.forget_work()  # earlier work says nothing about a silence that begins now
        self._ran_at = time.monotonic()  # a look may take long

    def _evidence(self, still_s: float, quiet_s: float) -> AbstractContextManager[None]:
        """Measure how the ranks work, unless the job moves: then it will not be needed soon."""
        soon_s = self._hang_after_s - work_window_s(self._hang_after_s) - 3 * self._look_s
        if still_s >= soon_s or quiet_s >= min(_QUIET_S, self._hang_after_s / 4):
            return self._probe.asking()
        self._probe.forget_work()
        return nullcontext()

    def _conclude(self) -> None:
        """Nothing has moved here for long: is it so everywhere, and who is it?"""
        with self._lock:
            self._check(time.monotonic(), thoroughly=True)
        still = self._progress.still_s(time.monotonic())
        if still < self._report_at_s:
            return
        replies = self._ask_others(self._hang_after_s * _ABOUT_AS_LONG, ANSWER_LIMIT_S)
        moving = [reply.still_s for reply in replies.given.values() if reply.snapshot is None]
        if moving:
            # Somebody works: look again when that, too, could have been long ago.
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
        self._reported(HangReport(still, finding, tuple(nodes)))

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
    """Leave out what the launcher itself wrote into the log."""
    return "\n".join(line for line in text.splitlines() if marked(_without_prefix(line)) is None)


def _without_prefix(line: str) -> str:
    found = line.split("] ", 1)
    return found[1] if line.startswith("[node ") and len(found) == 2 else line
