"""The agent's main thread: it looks, decides and acts, and never waits for the network."""

from __future__ import annotations

import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from platform_launch.environment import Environment
from platform_launch.errors import LaunchError, UsageError
from platform_launch.procguard.agent.connection import AgentConnection
from platform_launch.procguard.agent.exchange import Exchange
from platform_launch.procguard.agent.heartbeats import HeartbeatSender
from platform_launch.procguard.agent.inspecting import Inspector
from platform_launch.procguard.agent.machine import MachineMonitor, share
from platform_launch.procguard.agent.quarantine import QuarantineWatch
from platform_launch.procguard.agent.shipping import Shipping
from platform_launch.procguard.agent.state import RunFolder, StateFolder
from platform_launch.procguard.agent.worker import AgentLimits, Worker
from platform_launch.supervise.signals import SignalInbox

_STEP_S = 0.2
# The longest a last heartbeat and the last of the logs may take.
_GOODBYE_S = 12.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class Agent:
    """What an agent is made of. ``leave_running``: a signal ends the agent alone."""

    state: StateFolder
    connection: AgentConnection
    env: Environment
    limits: AgentLimits
    workers: int
    monitor: MachineMonitor
    quarantine: QuarantineWatch
    leave_running: bool = False


def run(agent: Agent, log: Callable[[str, str], None]) -> None:
    """Run until a signal, then end the trainings in good order. Main thread only.

    Raises UsageError when the server refuses this agent at its first word and nothing runs here.
    """
    with SignalInbox(_SIGNALS) as inbox:
        exchange = Exchange(inbox.wake)
        node = _Node(agent, exchange, log)
        beats = HeartbeatSender(agent.connection, exchange, log)
        shipping = Shipping(agent.connection, exchange, node.logs)
        node.step()
        agent.monitor.start()
        agent.quarantine.start()
        threads = [threading.Thread(target=work, daemon=True) for work in (beats.run, shipping.run)]
        for thread in threads:
            thread.start()
        try:
            _watch(agent, node, beats, threads, inbox, log)
        finally:
            exchange.close()
            for thread in threads:
                thread.join(_GOODBYE_S)
            agent.connection.close()


class _Node:
    """The workers of this node. Those beyond its number, of an agent with more ``--workers``, are ended."""

    def __init__(self, agent: Agent, exchange: Exchange, log: Callable[[str, str], None]) -> None:
        numbers = sorted({*range(agent.workers), *agent.state.numbers()})
        every = [Worker(number, agent.state, agent.env, agent.limits, log) for number in numbers]
        self._workers = every[: agent.workers]
        self._surplus = every[agent.workers :]
        self._exchange = exchange
        self._monitor = agent.monitor
        self._inspector = Inspector(agent.connection, agent.state, log)
        self._quarantine = agent.quarantine

    @property
    def quiet(self) -> bool:
        """Whether nothing runs here."""
        return all(worker.quiet for worker in (*self._workers, *self._surplus))

    def step(self, *, leaving: bool = False) -> None:
        """Let each worker take a step, and offer what is now to the server."""
        orders, _ = self._exchange.orders()
        self._inspector.answer_new(self._exchange.questions())
        for worker in self._workers:
            worker.order = orders.get(worker.number)
            worker.advance(leaving=leaving)
        for worker in self._surplus:
            worker.advance(leaving=True)
        self._surplus = [worker for worker in self._surplus if not worker.quiet]
        found = self._monitor.latest()
        self._exchange.machine = self._monitor.machine
        self._exchange.quarantine = self._quarantine.held
        self._quarantine.release(self._exchange.release)
        count = len(self._workers)
        self._exchange.offer(
            [worker.report(share(found, worker.number, count)) for worker in self._workers if worker.observed]
        )

    def logs(self) -> list[RunFolder]:
        """Return the runs whose logs are worth sending."""
        return [folder for worker in self._workers for folder in worker.logs()]


def _replaced_s(beats: HeartbeatSender) -> float:
    since = beats.replaced_since
    return 0.0 if since is None else time.monotonic() - since


def _watch(
    agent: Agent,
    node: _Node,
    beats: HeartbeatSender,
    threads: Sequence[threading.Thread],
    inbox: SignalInbox,
    log: Callable[[str, str], None],
) -> None:
    poll = select.poll()
    poll.register(inbox.fd, select.POLLIN)
    leaving = False
    while True:
        node.step(leaving=leaving)
        if leaving and node.quiet:
            return
        if beats.refused_for_good and node.quiet:
            raise UsageError(beats.refused_for_good)
        if not leaving and not node.quiet and _replaced_s(beats) > agent.limits.orphan_after_s:
            leaving = True
            log("WARN", "another agent has this node's name: nobody can stop what runs here, ending it")
        if not all(thread.is_alive() for thread in threads):  # the traceback is on stderr
            raise LaunchError("a part of this agent has failed", "start it again: it finds its trainings")
        poll.poll(_STEP_S * 1000)
        for number in inbox.take():
            if leaving or agent.leave_running:
                if not node.quiet:
                    limit_s = agent.limits.orphan_after_s
                    log("WARN", f"{number.name}: trainings go on, for {limit_s:g} s unless an agent comes")
                return
            leaving = True
            log("INFO", f"{number.name}: ending the trainings of this node; once more leaves them running")
