"""One start of a training on this node: supervised, and watched for hangs and for devices that fail."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from signal import Signals
from threading import Thread
from typing import TYPE_CHECKING

from platform_launch.console import Console
from platform_launch.events import event
from platform_launch.launch.notices import NoticeWatch, ReclaimNotice
from platform_launch.launch.saves import SaveWatch
from platform_launch.launch.statistics.run_report import RunReporter
from platform_launch.launch.training_command import TrainingCommand
from platform_launch.supervise import Outcome, Supervisor
from platform_launch.supervise.signals import WARNING, SignalInbox
from platform_launch.text import Phrase, seconds

if TYPE_CHECKING:
    from platform_launch.health.finding import NodeHealth
    from platform_launch.launch.hang_watch import HangWatch
    from platform_launch.launch.health_watch import HealthWatch
    from platform_launch.observe.monitor import HangReport
    from platform_launch.rendezvous.run.texts import TextCommand, TextNews


# Until all nodes have heard of a signal to one of them: two heartbeats of the rendezvous.
_SPREAD_S = 1.0
# Of many nodes that are warned at once, one tells the others.
_NODES_PER_S, _MOST_PAUSE_S = 50, 5.0
# A training that hangs will not write a last checkpoint.
_HANG_GRACE_S = 5.0


@dataclass(frozen=True)
class LaunchContext:
    """What stays the same over all starts: where the launch speaks, its signals, and its run so far."""

    console: Console
    inbox: SignalInbox
    reporter: RunReporter = field(default_factory=RunReporter)


class WatchedTraining:
    """For one start. ``send`` reaches the other nodes, and ``end()`` ends it on all of them for its ``hang``.

    Both are None where there are no others. ``on_ending`` and ``on_exit`` are as the Supervisor's.
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
        self._has_folder = self._exited = self._failed = False
        self.hang: HangReport | None = None
        self._heard_elsewhere, self._has_notice = threading.Event(), False
        self._notices = NoticeWatch(list(training.notices), self._on_notice)
        self.saves = SaveWatch(training, lambda told: self.supervisor.report(told))
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
            on_asked=self._on_asked,
            spread_s=0.0 if send is None else _SPREAD_S,
            inbox=context.inbox,
            temporary=training.temporary,
            is_agent=training.is_agent,
            folds=context.console.has_log and not context.console.verbose,
        )

    def run(self) -> Outcome:
        """Run it to its end. Raises Interrupted when a signal came before."""
        training = self._training
        self._context.inbox.check()
        training.exit_file.clear()
        self._context.reporter.clock.begin(training.log_path)
        if self._health is None:
            self._try(self._prepare_health)
        self._has_folder = training.hangs is not None and training.hangs.open_folder(self.supervisor.report)
        try:
            outcome = self.supervisor.run()
            self.saves.end(outcome, self.supervisor.stop_signal)
            self._notices.stop()
            if outcome.log_path is None:
                self._context.console.drop_log()
            return training.exit_file.corrected(outcome, self._context.console.report)
        finally:
            self._context.reporter.clock.end()
            if self._hangs is not None:
                self._hangs.stop()
            elif training.hangs is not None:
                training.hangs.remove_folder()

    def prepare_watches(self) -> None:
        """Make both watches before it starts; a node alone imports and makes the one for hangs meanwhile."""
        self._prepare_health()
        self._prepare_hangs()

    def _prepare_health(self) -> None:
        if self._training.health.has_devices or self._send is not None:
            from platform_launch.launch.health_watch import HealthWatch

            self._health = HealthWatch(self._training.health, self.supervisor.report, self._send)
        self._context.reporter.begin(self._training.health, self.supervisor.report, self._health)

    def _prepare_hangs(self) -> None:
        from platform_launch.launch.hang_watch import HangWatch

        if self._training.hangs is not None:
            self._hangs = HangWatch(
                self._training.hangs,
                self.supervisor.report,
                self._on_hang,
                self._send,
                self._context.reporter.overview,
                self._context.reporter.clock,
                self._health.slowed_devices if self._health is not None else dict,
            )

    def receive(self, message: TextNews) -> None:
        """Take a message of the other nodes' watches; whatever comes of it, the link goes on."""

        def handle() -> None:
            from platform_launch.launch.peers import read_save_notice  # here: a node alone has none

            warned_by = read_save_notice(message)
            if warned_by is not None:
                self._heard_elsewhere.set()
                self.saves.request()
                self.supervisor.warn(warned_by)
                return
            if self._health is not None and not self._health.receive(message) and self._hangs is not None:
                self._hangs.receive(message)

        self._try(handle)

    def check_devices(self) -> NodeHealth | None:
        """Return what the devices make of this node after a failure; None where nobody can tell."""
        said: list[NodeHealth | None] = [None]
        self._try(lambda: said.append(self._health.check() if self._health is not None else None))
        return said[-1]

    def still_s(self, within_s: float) -> float | None:
        """Return for how long nothing has moved, see HangMonitor; None where nobody can tell."""
        try:
            return self._hangs.still_s(within_s) if self._hangs is not None else None
        except Exception:  # it goes with each sign of life, which must come all the same
            return None

    def report_who_left(self) -> str:
        """Say which ranks left the others, see HangWatch."""
        said = [""]

        def report() -> None:
            if self._hangs is not None:
                said.append(self._hangs.report_who_left(self.supervisor.tail, failed_here=self._failed))

        self._try(report)
        return said[-1]

    def close(self) -> None:
        """Watch no more."""
        if self._health is not None:
            self._health.stop()

    def _on_start(self, pid: int) -> None:
        self._try(lambda: self.saves.start(pid))
        self._try(self._notices.start)
        self._try(self._start_watches)

    def _try(self, step: Callable[[], None]) -> None:
        """Take a step towards watching: whatever comes of it, the training goes on."""
        try:
            step()
        except Exception as error:
            self.supervisor.report(event("not-observed", problem=f"{type(error).__name__}: {error}"))

    def _on_asked(self, number: Signals) -> None:
        self.saves.request()
        if number in WARNING:
            self._try(lambda: self._warn_others(number))

    def _on_notice(self, notice: ReclaimNotice) -> None:
        """This node will be taken away: all ranks are asked to save while there is time."""
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
            self._try(lambda: self._warn_others(number))
        self.supervisor.warn(number)

    def _warn_others(self, number: Signals) -> None:
        """Let the other nodes warn their ranks too, unless one of them has told all meanwhile."""
        send = self._send
        if send is None:
            return
        from platform_launch.launch.peers import save_notice

        pause_s = random.random() * min(self._training.nnodes / _NODES_PER_S, _MOST_PAUSE_S)  # noqa: S311 - no secret

        def report() -> None:
            if not self._heard_elsewhere.wait(pause_s):
                send(save_notice(number))

        Thread(target=report, name="warn-others", daemon=True).start()

    def _start_watches(self) -> None:
        if self._health is not None:
            self._health.start()
        if not self._has_folder:
            return
        if self._hangs is not None:
            self._hangs.start()
        else:
            Thread(target=self._try, args=(self._load,), name="load", daemon=True).start()

    def _load(self) -> None:
        """Import what watches for hangs: a signal must not wait until the main thread has done it."""
        import platform_launch.launch.hang_watch  # noqa: F401

        self.supervisor.do(lambda: self._try(self._start_late))

    def _start_late(self) -> None:
        if not self._exited and self.supervisor.stopped_by is None:
            self._prepare_hangs()
            if self._hangs is not None:
                self._hangs.start()

    def _on_hang(self, report: HangReport) -> None:
        self.hang = report
        if self._end is not None:
            self._end()
        else:
            self.supervisor.stop("the training hangs", _HANG_GRACE_S)

    def _on_ending(self, reason: str) -> None:
        if self._hangs is not None:
            self._hangs.stop_watching()
        self._then_on_ending(reason)

    def _on_exit(self, code: int) -> None:
        self._exited, self._failed = True, 0 < code < 128
        if self._hangs is not None:
            self._hangs.stop_watching()
            if code and self.hang is None and self.supervisor.stopped_by is None:
                self.report_who_left()
        self._then_on_exit(code)
