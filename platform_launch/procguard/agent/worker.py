"""One worker of this node: its state, its steps, and processes left behind by a killed supervisor."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch import helper
from platform_launch.environment import Environment
from platform_launch.errors import LaunchError
from platform_launch.hardware import running
from platform_launch.hardware.running import Process
from platform_launch.procguard.agent import records
from platform_launch.procguard.agent.check import (
    MasterLookup,
    supervisor_variables,
    training_variables,
    why_not,
)
from platform_launch.procguard.agent.inspecting import hook_variables
from platform_launch.procguard.agent.output import OutputRhythm, SlowRanksReader, StepMeter
from platform_launch.procguard.agent.reconcile import (
    NextAction,
    Stage,
    StartRefusal,
    WorkerRun,
    decide,
    report,
)
from platform_launch.procguard.agent.records import MARKER
from platform_launch.procguard.agent.state import RunFolder, StateFolder, is_alive
from platform_launch.procguard.api.english import english
from platform_launch.procguard.api.wire import GpuReport, WorkerOrder, WorkerReport
from platform_launch.sentences import Sentence, sentence
from platform_launch.supervise.detached import reap_detached, start_detached

# The kernel sent them SIGTERM when their supervisor died.
_OBEY_S = 3.0


class Leftovers:
    """The processes of one worker's runs without a supervisor."""

    def __init__(self, instance: str, number: int) -> None:
        self._prefix = f"{instance}:{number}:"
        self._kill_at = float("inf")
        self._terminated: set[int] = set()
        self._found: list[Process] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the last scan."""
        return tuple(process.pid for process in self._found)

    def scan(self, kept: Collection[int]) -> None:
        """Search all processes; ``kept`` are the generations whose supervisor is alive."""
        self._found = [process for process in running.running() if self._is_ours(process, kept)]

    def end(self) -> None:
        """Send SIGTERM to the processes found, and SIGKILL after some seconds."""
        now = time.monotonic()
        if not self._terminated:
            self._kill_at = now + _OBEY_S
        for process in self._found:
            if now >= self._kill_at:
                running.end(process, signal.SIGKILL)
            elif process.pid not in self._terminated:
                running.end(process, signal.SIGTERM)
                self._terminated.add(process.pid)
        if not self._found:
            self._terminated.clear()

    def _is_ours(self, process: Process, kept: Collection[int]) -> bool:
        carried = running.variable(process.pid, MARKER) or ""
        if not carried.startswith(self._prefix):
            return False
        generation = carried.removeprefix(self._prefix)
        return not (generation.isdigit() and int(generation) in kept)


# Interval for checking a refused start again: the check reads every process of the machine.
_CHECK_AGAIN_S = 1.0

BY_ORDER = sentence("stopped-by-order")
BY_AGENT = sentence("stopped-by-agent")


@dataclass(frozen=True)
class AgentLimits:
    """What an agent may start and how, set by whoever starts the agent.

    ``command`` is for groups without one. ``allowed`` None allows any command. ``observe``: runs can be
    inspected.
    """

    directory: Path
    command: tuple[str, ...] = ()
    allowed: tuple[str, ...] | None = None
    orphan_after_s: float = 300.0
    observe: bool = True


class Worker:
    """Brings one worker to its desired state, a step at a time; nothing here waits. ``log(level, text)``.

    ``observed``: whether its runs have been read; before that there is nothing to report.
    """

    def __init__(
        self,
        number: int,
        state: StateFolder,
        env: Environment,
        limits: AgentLimits,
        log: Callable[[str, str], None],
    ) -> None:
        self.number = number
        self.order: WorkerOrder | None = None
        self.run: WorkerRun | None = None
        self.observed = False
        self._state = state
        self._env = env
        self._limits = limits
        self._log = log
        self._boot = running.boot_id()
        self._instance = state.instance()
        self._leftovers = Leftovers(self._instance, number)
        self._refusal: StartRefusal | None = None
        self._check_again_at = 0.0
        self._master = MasterLookup()
        self._steps = StepMeter()
        self._rhythm = OutputRhythm()
        self._slow_ranks = SlowRanksReader()
        self._output: Path | None = None
        self._supervisors: set[int] = set()
        self._lost: int | None = -1  # so that the first step searches for leftovers
        self._signalled = -1
        self._last_logged = ""

    @property
    def quiet(self) -> bool:
        """Whether nothing of this worker runs."""
        return not (self.run and self.run.alive) and not self._leftovers.pids

    def advance(self, *, leaving: bool = False) -> None:
        """Read the actual state, take the next step, and read it again."""
        self._supervisors = reap_detached(self._supervisors)
        if not self._refresh():
            return
        step = decide(self.order, self.run, leftovers=bool(self._leftovers.pids), leaving=leaving)
        if step is NextAction.NOTHING or (step is NextAction.CHECK and self._just_refused()):
            return
        try:
            self._carry_out(step, leaving=leaving)
        except (OSError, LaunchError) as error:
            problem = (
                error.message if isinstance(error, LaunchError) else f"{error.filename}: {error.strerror}"
            )
            if step is NextAction.CHECK and self.order:
                self._refuse(self.order, sentence("state-trouble", problem=problem))
            else:
                self._log_once("ERROR", f"cannot {step.value}: {problem}")
        self._refresh()

    def report(self, gpus: Sequence[GpuReport]) -> WorkerReport:
        """Return the report for the server."""
        found = report(
            self.number,
            self.order,
            self.run,
            refusal=self._refusal,
            leftovers=self._leftovers.pids,
            gpus=gpus,
        )
        output = self._output if self.run and self.run.alive else None
        launcher = self.order is not None and "RANK" not in self.order.environment
        progress = {
            "steps_per_s": self._steps.read(output),
            "moved_s_ago": self._rhythm.read(output),
            "slow_ranks": self._slow_ranks.read(found.pid if launcher and output else None),
        }
        return found.model_copy(update=progress)

    def logs(self) -> list[RunFolder]:
        """Return the runs whose output should be sent, newest first."""
        with suppress(OSError):
            return self._state.runs(self.number)[:-3:-1]
        return []

    def _refresh(self) -> bool:
        """Read the actual state. If it cannot be read, it is assumed unchanged: a failing disk stops no
        run.
        """
        try:
            self._read_runs()
        except OSError as error:
            self._log_once("ERROR", f"cannot read the state of runs: {error.filename}: {error.strerror}")
            return False
        self.observed = True
        return True

    def _read_runs(self) -> None:
        before = self.run
        folders = self._state.runs(self.number)
        self.run = folders[-1].read_run(self._boot) if folders else None
        self._output = folders[-1].path / records.LOG if folders else None
        lost = self.run.generation if self.run and self.run.stage is Stage.LOST else None
        if self._leftovers.pids or lost != self._lost:
            self._search(folders)
        if lost is not None and self.run and self.run.reason and lost != self._lost:
            self._log_once("WARN", english(self.run.reason))
        self._lost = lost
        if before and before.alive and self.run and self.run.stage is Stage.EXITED:
            self._log_once("INFO", f"run {self.run.generation} ended with exit code {self.run.exit_code}")

    def _search(self, folders: Sequence[RunFolder]) -> None:
        kept = {folder.generation for folder in folders if is_alive(folder.supervisor())}
        if self.run and self.run.alive:
            kept.add(self.run.generation)
        self._leftovers.scan(kept)
        self._leftovers.end()

    def _carry_out(self, step: NextAction, *, leaving: bool) -> None:
        folders = self._state.runs(self.number)
        if step is NextAction.WITHDRAW:
            shutil.rmtree(folders[-1].path)
        elif step is NextAction.END:
            self._request_stop(folders[-1], BY_AGENT if leaving else BY_ORDER)
        elif self.order is not None and step is NextAction.CHECK:
            self._check(self.order, folders)
        elif self.order is not None:
            self._start(self.order, folders[-1])

    def _request_stop(self, folder: RunFolder, reason: Sentence) -> None:
        """Record that a run should stop; its supervisor reads that. A shorter grace period wins."""
        grace_s = self.order.grace_s if self.order else 25.0
        try:
            path = folder.path / records.AGENT
            written = (records.read(path) or {}).get("stop")
            if written is not None and float(written["grace_s"]) <= grace_s:
                return
            records.update(path, stop={"reason": reason.document(), "grace_s": grace_s})
        except OSError:  # a failing disk must not keep it running
            self._signal_supervisor(folder)
        self._log_once("INFO", f"stopping, SIGKILL after {grace_s:g} s: {english(reason)}")

    def _signal_supervisor(self, folder: RunFolder) -> None:
        found = running.find(int(folder.supervisor().get("pid", 0)))
        if found and self._signalled != folder.generation and is_alive(folder.supervisor()):
            self._signalled = folder.generation
            running.end(found, signal.SIGTERM)

    def _check(self, order: WorkerOrder, folders: Sequence[RunFolder]) -> None:
        known, unknown = self._master.why_not(order)
        if not known:  # this step is repeated
            return
        self._search(folders)
        if self._leftovers.pids or self._refused(order):
            return
        if unknown:
            self._refuse(order, unknown)
            return
        folder = self._state.make_run(self.number, order.generation)
        records.write(folder.path / records.AGENT, {"ready": self._boot})
        self._log_once("INFO", f"ready for run {order.generation}")

    def _refused(self, order: WorkerOrder) -> bool:
        """Check whether an order is allowed and could start here; refuse it if not."""
        reason = why_not(
            order.model_copy(update={"command": order.command or self._limits.command}),
            allowed=self._limits.allowed,
            directory=self._limits.directory,
            path=self._env.get("PATH", ""),
        )
        if reason:
            self._refuse(order, reason)
        return bool(reason)

    def _refuse(self, order: WorkerOrder, reason: Sentence) -> None:
        self._refusal = StartRefusal(order.generation, reason)
        self._check_again_at = time.monotonic() + _CHECK_AGAIN_S
        self._log_once("WARN", f"cannot start run {order.generation}: {english(reason)}")

    def _just_refused(self) -> bool:
        same = self._refusal and self.order and self._refusal.generation == self.order.generation
        return bool(same) and time.monotonic() < self._check_again_at

    def _start(self, order: WorkerOrder, folder: RunFolder) -> None:
        """Start once: the start is recorded first, and is never repeated after that.

        The command of RUN is what starts, so it is checked again: PREPARE may have had another one.
        """
        if self._refused(order):
            shutil.rmtree(folder.path)
            return
        mark = f"{self._instance}:{self.number}:{order.generation}"
        variables = training_variables(self._env, order, mark)
        if self._limits.observe:
            variables |= hook_variables(folder.path, variables)
        records.RunLaunch(
            command=order.command or self._limits.command,
            environment=variables,
            directory=str(self._limits.directory / order.directory),
            grace_s=order.grace_s,
            lock=str(self._state.lock),
            orphan_after_s=self._limits.orphan_after_s,
        ).write(folder.path)
        records.update(folder.path / records.AGENT, starting=records.now())
        argv = helper.command("procguard-supervisor", str(folder.path))
        try:
            self._supervisors.add(start_detached(argv, supervisor_variables(self._env)))
        except LaunchError as error:
            with suppress(OSError):
                folder.give_up(sentence("lost-start-failed", problem=error.message))
            raise
        self._log_once("INFO", f"starting run {order.generation}")

    def _log_once(self, level: str, text: str) -> None:
        """Log a message once, however often it is found again."""
        key = f"{self.run.generation if self.run else -1}: {text}"
        if key != self._last_logged:
            self._last_logged = key
            self._log(level, f"worker {self.number}: {text}")
