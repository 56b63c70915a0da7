"""One start of a job in a drill: what its log and its checkpoint folder show, and the faults to inject."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch.helper import PACKAGE
from platform_launch.observe.checkpoints import listing
from platform_launch.observe.steps import StepFollower
from platform_launch.simulation.drill_judge import LoggedStep, SeenStart, steps_in
from platform_launch.supervise import Command, Watch
from platform_launch.supervise.processes import shell_code
from platform_launch.supervise.signals import Interrupted
from platform_launch.why.answer.verdict import Verdict
from platform_launch.why.sources import events_of, node_of

# The folder in which the ranks register (observe/hook/_platform_launch_drill.py).
VARIABLE = "PLATFORM_LAUNCH_DRILL"

_LOOK_S = 0.05
# A checkpoint that has not changed for this long is complete, unless a step is printed earlier.
_COMPLETE_S = 0.5


@dataclass(frozen=True)
class DrilledJob:
    """The job that is started repeatedly: the arguments of ``simulate``, and where it runs.

    ``work`` is the folder in which the script keeps its checkpoints. A start without progress for
    ``timeout_s`` counts as hung.
    """

    words: Sequence[str]
    arguments: Sequence[str]
    env: Mapping[str, str]
    directory: Path
    work: Path
    logs: Path
    timeout_s: float


class DrillStart:
    """One start. ``act(start)`` is called periodically; the start ends if it returns true."""

    def __init__(self, job: DrilledJob, name: str) -> None:
        self._job = job
        self._logs = job.logs / name
        self._hooked = self._logs / "ranks"
        self._hooked.mkdir(parents=True)
        self._followers: dict[int, StepFollower] = {}
        self._of_node: dict[int, list[LoggedStep]] = {}
        self._pid = 0
        self._exit_code: int | None = None
        self._files: dict[Path, int] = {}
        self._at_request: dict[Path, int] | None = None
        self._saved_at: list[int] = []
        self._changed_at: float | None = None
        self._moved_at = self._saved_or_began_at = time.monotonic()
        self._is_stuck = self._is_enough = False
        self._ended = threading.Event()

    @property
    def steps(self) -> list[LoggedStep]:
        """The steps printed so far, by the first node that prints any."""
        return next((steps for _, steps in sorted(self._of_node.items()) if steps), [])

    @property
    def saves(self) -> int:
        """How many checkpoints are complete."""
        return len(self._saved_at)

    @property
    def is_late(self) -> bool:
        """Whether steps continue, but there was no checkpoint for twice ``timeout_s``."""
        return time.monotonic() - self._saved_or_began_at > 2 * self._job.timeout_s

    def has_steps_past(self, saves: int, steps: int) -> bool:
        """Return whether this many checkpoints are complete, and this many steps were printed since."""
        return self.saves >= saves and len(self.steps) - self._saved_at[saves - 1] >= steps

    def record_data(self) -> None:
        """Let the ranks record which samples they read."""
        (self._hooked / "note-data").touch()

    def die_at_limit(self) -> None:
        """Let a rank be killed by a write beyond the limit of :meth:`limit_files`."""
        (self._hooked / "die-at-limit").touch()

    def kill_a_rank(self) -> None:
        """Send SIGKILL to the rank that joined last."""
        newest = max(self._hooked.glob("*.rank"), key=lambda path: path.stat().st_mtime_ns, default=None)
        if newest is not None:
            with suppress(ProcessLookupError):
                os.kill(int(newest.stem), signal.SIGKILL)

    def ask_to_stop(self) -> None:
        """Send SIGTERM to all nodes, as a scheduler does."""
        self._at_request = listing([self._job.work])
        os.kill(self._pid, signal.SIGTERM)

    def limit_files(self) -> None:
        """Let no rank write more than half of the largest file of the checkpoints."""
        half = max((path.stat().st_size for path in self._files if path.exists()), default=2) // 2
        for path in self._hooked.glob("*.rank"):
            with suppress(OSError):
                hard = resource.prlimit(int(path.stem), resource.RLIMIT_FSIZE)[1]
                resource.prlimit(int(path.stem), resource.RLIMIT_CORE, (0, 0))
                resource.prlimit(int(path.stem), resource.RLIMIT_FSIZE, (half, hard))

    def run(self, act: Callable[[DrillStart], bool]) -> SeenStart:
        """Start the job, and return the observations once it has ended. Raises Interrupted. Main thread
        only.
        """
        job = self._job
        argv = (sys.executable, str(PACKAGE / "__main__.py"), "simulate", *job.words)
        argv = (*argv, "--log-dir", str(self._logs), "--", *job.arguments)
        env = {**job.env, VARIABLE: str(self._hooked)}
        problems: list[BaseException] = []

        def on_end(_pid: int, code: int) -> None:
            self._exit_code = shell_code(code)
            self._ended.set()

        watch = Watch(grace_s=5.0, report=lambda _event: None, ended=on_end)

        def observe() -> None:
            try:
                self._observe(act)
            except Exception as problem:
                problems.append(problem)
            if not self._ended.is_set():
                watch.stop("enough was seen", grace_s=0.0)

        with watch, (self._logs / "screen.txt").open("wb") as screen, Path(os.devnull).open("rb") as nothing:
            self._pid = watch.start(
                Command(argv, env, job.directory),
                {0: nothing.fileno(), 1: screen.fileno(), 2: screen.fileno()},
            )
            observer = threading.Thread(target=observe, name="drill", daemon=True)
            observer.start()
            watch.wait()
            self._ended.set()
            observer.join()
        if watch.stop_signal:
            raise Interrupted(signal.Signals[watch.stop_signal])
        if problems:
            raise problems[0]
        return self._seen()

    def _observe(self, act: Callable[[DrillStart], bool]) -> None:
        while not self._ended.wait(_LOOK_S):
            self._poll()
            if act(self):
                self._is_enough = True
                return
            if time.monotonic() - self._moved_at > self._job.timeout_s:
                self._is_stuck = True
                return

    def _poll(self) -> None:
        files, now, before = listing([self._job.work]), time.monotonic(), len(self.steps)
        for log in self._logs.glob("train_*.log"):
            node = node_of(log.name) or 0
            follower = self._followers.setdefault(node, StepFollower(log))
            self._of_node.setdefault(node, []).extend(steps_in(follower.read_lines()))
        has_new_steps = len(self.steps) > before
        if self._changed_at is not None and (has_new_steps or now - self._changed_at > _COMPLETE_S):
            self._saved_at.append(max(1, before))
            self._changed_at, self._saved_or_began_at = None, now
        if files != self._files:
            self._files, self._changed_at = files, now
        if has_new_steps or self._changed_at == now:
            self._moved_at = now

    def _seen(self) -> SeenStart:
        self._poll()
        if self._changed_at is not None and self._exit_code == 0:
            self._saved_at.append(len(self.steps))
        events = [event for log in sorted(self._logs.glob("train_*.log")) for event in events_of(log) or ()]
        last = {event.id: event for event in events}
        reason = ""
        if self._is_stuck and "no-progress" in last:
            reason = str(last["no-progress"].fields.get("headline", ""))
        elif "verdict" in last:
            reason = Verdict.from_fields(last["verdict"].fields).short_title()
        after_request = None if self._at_request is None else self._at_request != self._files
        ended_by_drill = self._is_enough or self._is_stuck
        return SeenStart(
            tuple(self.steps),
            tuple(self._saved_at),
            None if ended_by_drill else self._exit_code,
            self._is_stuck,
            reason,
            killed=not last.keys().isdisjoint(("overdue-killed", "leftovers-killed")),
            saved_after_request=after_request,
            data=self._data(),
        )

    def _data(self) -> dict[int, list[list[str]]]:
        return {
            int(path.stem): [line.split() for line in path.read_text().splitlines()]
            for path in self._hooked.glob("*.data")
        }

    def last_lines(self) -> str:
        """Return the last two lines on the screen, such as an error and its hint: no cause is known."""
        lines = (self._logs / "screen.txt").read_text(errors="replace").splitlines()
        return "; ".join([line.strip() for line in lines if line.strip()][-2:])
