"""The agent's main thread: it observes, decides and acts, and never waits for the network."""

from __future__ import annotations

import select
import signal
import threading
import time
from collections.abc import Callable, Sequence

from platform_launch.environment import Environment
from platform_launch.errors import LaunchError, UsageError
from platform_launch.procguard.agent.connection import AgentConnection
from platform_launch.procguard.agent.heartbeats import Exchange, HeartbeatSender
from platform_launch.procguard.agent.inspecting import Inspector
from platform_launch.procguard.agent.machine import MachineMonitor, QuarantineWatch, share
from platform_launch.procguard.agent.shipping import Shipping
from platform_launch.procguard.agent.state import RunFolder, StateFolder
from platform_launch.procguard.agent.worker import AgentLimits, Worker
from platform_launch.supervise.signals import SignalInbox

_STEP_S = 0.2
# Limit for the last heartbeat and the rest of the logs.
_GOODBYE_S = 12.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Agent:
    """Runs this node's workers; ends the runs of workers beyond ``workers``, left by an agent with more.

    ``leave_running``: a signal stops only the agent. ``log(level, text)`` gets every message.
    """

    def __init__(
        self,
        state: StateFolder,
        connection: AgentConnection,
        env: Environment,
        limits: AgentLimits,
        workers: int,
        monitor: MachineMonitor,
        quarantine: QuarantineWatch,
        log: Callable[[str, str], None],
        *,
        leave_running: bool,
    ) -> None:
        numbers = sorted({*range(workers), *state.numbers()})
        every = [Worker(number, state, env, limits, log) for number in numbers]
        self._workers, self._surplus = every[:workers], every[workers:]
        self._connection = connection
        self._orphan_after_s = limits.orphan_after_s
        self._monitor = monitor
        self._quarantine = quarantine
        self._log = log
        self._leave_running = leave_running
        self._inspector = Inspector(connection, state, log)

    def run(self) -> None:
        """Run until a signal, then stop all runs cleanly. Main thread only.

        Raises UsageError if the server refuses this agent from the start and nothing runs here.
        """
        with SignalInbox(_SIGNALS) as inbox:
            exchange = Exchange(inbox.wake)
            beats = HeartbeatSender(self._connection, exchange, self._log)
            shipping = Shipping(self._connection, exchange, self._logs)
            self._quarantine.start()
            self._step(exchange)
            self._monitor.start()
            threads = [threading.Thread(target=work, daemon=True) for work in (beats.run, shipping.run)]
            for thread in threads:
                thread.start()
            try:
                self._watch(exchange, beats, threads, inbox)
            finally:
                exchange.close()
                for thread in threads:
                    thread.join(_GOODBYE_S)
                self._connection.close()

    def _watch(
        self,
        exchange: Exchange,
        beats: HeartbeatSender,
        threads: Sequence[threading.Thread],
        inbox: SignalInbox,
    ) -> None:
        limit_s = self._orphan_after_s
        poll = select.poll()
        poll.register(inbox.fd, select.POLLIN)
        leaving, logged = False, ""
        while True:
            self._step(exchange, leaving=leaving)
            if leaving and self._quiet:
                return
            refused = beats.refused_for_good
            if refused is not None and self._quiet:
                raise UsageError(refused.what, refused.hint)
            if refused is not None and refused.text != logged:
                logged = refused.text
                self._log("WARN", f"{logged}; trying again, runs here continue")
            since = beats.replaced_since
            if since is not None and time.monotonic() - since > limit_s and not (leaving or self._quiet):
                leaving = True
                self._log("WARN", "another agent has this node's name: stopping the runs here")
            if not all(thread.is_alive() for thread in threads):  # the traceback is on stderr
                raise LaunchError("a part of this agent has failed", "start it again: it finds its runs")
            poll.poll(_STEP_S * 1000)
            for number in inbox.receive():
                if leaving or self._leave_running:
                    if not self._quiet:
                        text = f"runs continue, for {limit_s:g} s without an agent"
                        self._log("WARN", f"{number.name}: {text}")
                    return
                leaving = True
                text = "stopping the runs of this node; a second signal leaves them running"
                self._log("INFO", f"{number.name}: {text}")

    @property
    def _quiet(self) -> bool:
        """Whether nothing runs here."""
        return all(worker.quiet for worker in (*self._workers, *self._surplus))

    def _step(self, exchange: Exchange, *, leaving: bool = False) -> None:
        """Let each worker take a step, and offer the current reports."""
        orders, _ = exchange.orders()
        self._inspector.answer_new(exchange.new_questions())
        for worker in self._workers:
            worker.order = orders.get(worker.number)
            worker.advance(leaving=leaving)
        for worker in self._surplus:
            worker.advance(leaving=True)
        self._surplus = [worker for worker in self._surplus if not worker.quiet]
        found = self._monitor.latest()
        exchange.machine = self._monitor.machine
        exchange.gpu_processes = self._monitor.gpu_processes
        exchange.quarantine = self._quarantine.held
        self._quarantine.release(exchange.release)
        count = len(self._workers)
        exchange.offer(
            [worker.report(share(found, worker.number, count)) for worker in self._workers if worker.observed]
        )

    def _logs(self) -> list[RunFolder]:
        """Return the runs whose logs should be sent."""
        return [folder for worker in self._workers for folder in worker.logs()]
