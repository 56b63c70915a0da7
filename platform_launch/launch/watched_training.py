"""One start of the processes on this node: supervised, and monitored for hangs and failing devices.

The monitors are imported while the processes load their libraries, and must not delay them.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import cached_property
from signal import Signals
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from platform_launch.console import Console
from platform_launch.errors import InputError
from platform_launch.events import Event, event
from platform_launch.launch.saves import SaveWatch
from platform_launch.launch.training_command import TrainingCommand, open_folder, remove_folder, sweep
from platform_launch.observe.notices import NoticeWatch, ReclaimNotice
from platform_launch.supervise import Outcome, Supervisor
from platform_launch.supervise.signals import WARNING, SignalInbox
from platform_launch.text import Phrase, seconds

if TYPE_CHECKING:
    from platform_launch.health.finding import NodeHealth
    from platform_launch.launch.hang_watch import HangWatch
    from platform_launch.launch.health_watch import HealthWatch
    from platform_launch.launch.process_watch import MemoryPeak
    from platform_launch.launch.run_report import RunReporter
    from platform_launch.observe.memory import MemoryHeld
    from platform_launch.observe.monitor import HangReport
    from platform_launch.rendezvous.run.texts import TextCommand, TextNews

# A signal to one node reaches the others within two heartbeats of the rendezvous.
_SPREAD_S = 1.0
# If many nodes are warned at once, one of them informs the others.
_NODES_PER_S, _MOST_PAUSE_S = 50, 5.0
# The processes load their libraries first, with all CPUs; the monitors can wait.
_LOAD_AFTER_S = 2.0
# A job that hangs will not write a last checkpoint.
_HANG_GRACE_S = 5.0

_T = TypeVar("_T")


class LaunchContext:
    """What stays the same over all attempts: the console, the signals, and the statistics of the run.

    The clock of the run starts now.
    """

    def __init__(self, console: Console, inbox: SignalInbox) -> None:
        self.console = console
        self.inbox = inbox
        self._since = time.monotonic()
        self._memory: MemoryPeak | None = None

    @cached_property
    def reporter(self) -> RunReporter:
        """The state of the run."""
        from platform_launch.launch.cost import RunClock
        from platform_launch.launch.run_report import RunReporter

        return RunReporter(RunClock(since=self._since))

    def begin(self, training: TrainingCommand, report: Callable[[Event], None]) -> None:
        """Begin to measure an attempt, whose processes have started."""
        self.reporter.begin(training.health, report)
        self.reporter.clock.begin(training.log_path)
        if self._memory is None:
            from platform_launch.launch.process_watch import MemoryPeak

            self._memory = MemoryPeak(training.health.gpus)
            self._memory.start()

    def held(self) -> MemoryHeld:
        """Return the peak memory of this node's processes so far."""
        from platform_launch.observe.memory import MemoryHeld

        return self._memory.held if self._memory is not None else MemoryHeld()

    def end(self) -> None:
        """Stop measuring."""
        if self._memory is not None:
            self._memory.stop()


class WatchedTraining:
    """For one start. ``hang`` is the report of a hang for which it was stopped.

    ``send`` reaches the other nodes, and ``end()`` stops the job on all of them because of a hang; both are
    None if there are no others. ``on_ending`` and ``on_exit`` are as the Supervisor's.
    """

    def __init__(
        self,
        training: TrainingCommand,
        context: LaunchContext,
        *,
        end: Callable[[], None] | None = None,
        send: Callable[[TextCommand], None] | None = None,
        on_ending: Callable[[str], None] = lambda _reason: None,
        on_exit: Callable[[int], None] = lambda _code: None,
    ) -> None:
        self._training = training
        self._context = context
        self._end = end
        self._send = send
        self._then_on_ending, self._then_on_exit = on_ending, on_exit
        self._health: HealthWatch | None = None
        self._hangs: HangWatch | None = None
        self._has_folder = self._failed = False
        self._exited = threading.Event()
        self.hang: HangReport | None = None
        self._warned_elsewhere, self._has_notice = threading.Event(), False
        self._notices = NoticeWatch(list(training.notices), self._on_notice)
        self.saves = SaveWatch(training, lambda event: self.supervisor.report(event))
        self.supervisor = Supervisor(
            training.command,
            log_path=training.log_path if context.console.has_log else None,
            prefix=training.prefix,
            grace_s=training.grace_s,
            log_limit_bytes=training.log_limit_bytes,
            on_event=context.console.record,
            is_shown=lambda event: context.console.shows("INFO", event),
            on_start=self._on_start,
            on_ending=self._on_ending,
            on_exit=self._on_exit,
            on_stop_requested=self._on_stop_requested,
            spread_s=0.0 if send is None else _SPREAD_S,
            inbox=context.inbox,
            temporary=training.temporary,
            is_agent=training.is_agent,
            folds=context.console.has_log and not context.console.verbose,
        )

    def run(self) -> Outcome:
        """Run the processes until they exit. Raises Interrupted for a signal that came before."""
        training, context = self._training, self._context
        context.inbox.check()
        training.exit_file.clear()
        if training.health.has_devices:  # a GPU may fail at once
            self._try(lambda: self._device_watch, None)
        folder = training.hangs.folder if training.hangs is not None else None
        if folder is not None:
            try:
                sweep(folder.parent)
                open_folder(folder)
                self._has_folder = True
            except (OSError, InputError) as error:
                self.supervisor.report(event("not-observed", problem=str(error)))
        try:
            outcome = self.supervisor.run()
            self.saves.end(outcome, self.supervisor.stop_signal)
            self._notices.stop()
            if outcome.log_path is None:
                context.console.drop_log()
            return training.exit_file.corrected(outcome, context.console.report)
        finally:
            self._exited.set()
            context.reporter.clock.end()
            if self._hangs is not None:
                self._hangs.stop()
            if folder is not None:
                remove_folder(folder)

    def receive(self, message: TextNews) -> None:
        """Handle a message for the monitors; errors do not affect the connection."""

        def handle() -> None:
            # Imported here, because a single node does not need it.
            from platform_launch.launch.peers import read_save_notice

            warned_by = read_save_notice(message)
            if warned_by is not None:
                self._warned_elsewhere.set()
                self.saves.request()
                self.supervisor.warn(warned_by)
                return
            if self._health is not None and not self._health.receive(message) and self._hangs is not None:
                self._hangs.receive(message)

        self._try(handle, None)

    def check_devices(self) -> NodeHealth | None:
        """Return the state of this node's devices after a failure; None if unknown."""
        return self._try(lambda: self._device_watch.check(), None) if self._watches_devices else None

    def still_s(self, within_s: float) -> float | None:
        """Return how long there has been no progress, see HangMonitor; None if unknown."""
        try:
            return self._hangs.still_s(within_s) if self._hangs is not None else None
        except Exception:  # it is part of each heartbeat, which must be sent in any case
            return None

    def report_early_exits(self) -> str:
        """Report which ranks left the others, see HangWatch."""
        hangs, tail = self._hangs, self.supervisor.tail
        if hangs is None:
            return ""
        return self._try(lambda: hangs.report_early_exits(tail, failed_here=self._failed), "")

    def close(self) -> None:
        """Stop monitoring the devices."""
        if self._health is not None:
            self._health.stop()

    def _try(self, step: Callable[[], _T], otherwise: _T) -> _T:
        """Start a monitor; a failure is reported, and the processes continue."""
        try:
            return step()
        except Exception as error:
            self.supervisor.report(event("not-observed", problem=f"{type(error).__name__}: {error}"))
            return otherwise

    @property
    def _watches_devices(self) -> bool:
        """Whether this node has devices to watch, or other nodes whose samples it receives."""
        return self._training.health.has_devices or self._send is not None

    @property
    def _device_watch(self) -> HealthWatch:
        """The monitor of this node's devices, which is made when it is first needed."""
        if self._health is None:
            from platform_launch.launch.health_watch import HealthWatch

            self._health = HealthWatch(self._training.health, self.supervisor.report, self._send)
        return self._health

    def _watch_devices(self) -> None:
        self._device_watch.start()
        self._context.reporter.health = self._device_watch

    def _on_start(self, pid: int) -> None:
        """Start the monitors; this also imports them."""
        self._try(lambda: self._context.begin(self._training, self.supervisor.report), None)
        if self._health is not None:
            self._try(self._watch_devices, None)
        self._try(lambda: self.saves.start(pid), None)
        self._try(self._notices.start, None)
        if self._has_folder or self._watches_devices:
            self._try(Thread(target=self._load, name="load", daemon=True).start, None)

    def _load(self) -> None:
        """Import the monitors, later, in a thread: a signal must not wait for a disk that hangs."""
        if self._exited.wait(_LOAD_AFTER_S):
            return

        def load() -> None:
            if self._health is None and self._watches_devices:
                import platform_launch.launch.health_watch
            if self._has_folder:
                import platform_launch.launch.hang_watch  # noqa: F401
            self.supervisor.do(lambda: self._try(self._start_watches, None))

        self._try(load, None)

    def _start_watches(self) -> None:
        """Start the monitors of devices and hangs, unless the processes are already stopping."""
        if self._exited.is_set() or self.supervisor.stopped_by is not None:
            return
        if self._watches_devices and self._health is None:
            self._watch_devices()
        if self._training.hangs is not None and self._has_folder:
            from platform_launch.launch.hang_watch import HangWatch

            self._hangs = HangWatch(
                self._training.hangs,
                self.supervisor.report,
                self._on_hang,
                self._send,
                self._context.reporter.overview,
                self._context.reporter.clock,
                self._health.slowed_devices if self._health is not None else dict,
            )
            self._hangs.start()

    def _on_stop_requested(self, number: Signals) -> None:
        self.saves.request()
        if number in WARNING:
            self._try(lambda: self._warn_others(number), None)

    def _on_notice(self, notice: ReclaimNotice) -> None:
        """Ask all ranks to save while there is time: this node will be taken away."""
        number = self._training.notice_signal
        if number is None:
            return
        if not self._has_notice:
            self._has_notice = True
            left_s = None if notice.at is None else max(0.0, notice.at - time.time())
            self.supervisor.report(
                event(
                    "node-taken-away",
                    source=notice.source,
                    left=Phrase("soon") if left_s is None else Phrase("in {time}", time=seconds(left_s)),
                    left_s=left_s,
                    signal=number.name,
                )
            )
            self.saves.request()
            self._try(lambda: self._warn_others(number), None)
        self.supervisor.warn(number)

    def _warn_others(self, number: Signals) -> None:
        """Let the other nodes warn their ranks too, unless one of them has already done so."""
        send = self._send
        if send is None:
            return
        from platform_launch.launch.peers import save_notice

        pause_s = random.random() * min(self._training.nnodes / _NODES_PER_S, _MOST_PAUSE_S)  # noqa: S311 - no secret

        def report() -> None:
            if not self._warned_elsewhere.wait(pause_s):
                send(save_notice(number))

        Thread(target=report, name="warn-others", daemon=True).start()

    def _on_hang(self, report: HangReport) -> None:
        self.hang = report
        if self._end is not None:
            self._end()
        else:
            self.supervisor.stop("the job hangs", _HANG_GRACE_S)

    def _on_ending(self, reason: str) -> None:
        if self._hangs is not None:
            self._hangs.stop_watching()
        self._then_on_ending(reason)

    def _on_exit(self, code: int) -> None:
        self._failed = 0 < code < 128
        self._exited.set()
        if self._hangs is not None:
            self._hangs.stop_watching()
            if code and self.hang is None and self.supervisor.stopped_by is None:
                self.report_early_exits()
        self._then_on_exit(code)
