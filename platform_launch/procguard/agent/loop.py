"""The agent's main thread: it looks, decides and acts, and never waits for the network."""

from __future__ import annotations

import select
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from platform_launch.environment import Environment
from platform_launch.errors import UsageError
from platform_launch.procguard.agent.beats import Beats
from platform_launch.procguard.agent.connection import Connection
from platform_launch.procguard.agent.exchange import Exchange
from platform_launch.procguard.agent.gpus import GpuWatch, share
from platform_launch.procguard.agent.shipping import Log, Shipping
from platform_launch.procguard.agent.state import StateFolder
from platform_launch.procguard.agent.worker import Limits, Worker
from platform_launch.supervise.signals import SignalInbox

_LOOK_S = 0.2
# The longest a last heartbeat and the last of the logs may take.
_GOODBYE_S = 12.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Answers to a join that no waiting will change: a wrong token, a request the server does not understand.
_FATAL = frozenset({400, 401, 403, 404, 422})


@dataclass(frozen=True)
class Agent:
    """What an agent is made of. ``leave_running``: a signal ends the agent alone."""

    state: StateFolder
    connection: Connection
    env: Environment
    limits: Limits
    workers: int
    gpus: GpuWatch
    leave_running: bool = False


def run(agent: Agent, say: Callable[[str, str], None]) -> None:
    """Run until a signal, then end the trainings in good order. Main thread only.

    Raises UsageError when the server refuses this agent at its first word and nothing runs here.
    """
    workers = [Worker(number, agent.state, agent.env, agent.limits, say) for number in range(agent.workers)]
    with SignalInbox(_SIGNALS) as inbox:
        exchange = Exchange(inbox.wake)
        beats = Beats(agent.connection, exchange, say)
        shipping = Shipping(agent.connection, exchange, lambda: _logs(workers))
        _step(workers, exchange, agent.gpus)
        agent.gpus.start()
        threads = [threading.Thread(target=work, daemon=True) for work in (beats.run, shipping.run)]
        for thread in threads:
            thread.start()
        try:
            _watch(agent, workers, exchange, beats, inbox, say)
        finally:
            exchange.close()
            for thread in threads:
                thread.join(_GOODBYE_S)
            agent.connection.close()


def _watch(
    agent: Agent,
    workers: Sequence[Worker],
    exchange: Exchange,
    beats: Beats,
    inbox: SignalInbox,
    say: Callable[[str, str], None],
) -> None:
    poll = select.poll()
    poll.register(inbox.fd, select.POLLIN)
    leaving = False
    while True:
        _step(workers, exchange, agent.gpus, leaving=leaving)
        quiet = all(worker.quiet for worker in workers)
        if leaving and quiet:
            return
        if quiet and not beats.joined and beats.refused and beats.refused.status in _FATAL:
            raise UsageError(beats.refused.text)
        poll.poll(_LOOK_S * 1000)
        for number in inbox.take():
            if leaving or agent.leave_running:
                if not quiet:
                    say(
                        "WARN",
                        f"{number.name}: trainings go on; without an agent they end "
                        f"after {agent.limits.orphan_after_s:g} s",
                    )
                return
            leaving = True
            say("INFO", f"{number.name}: ending the trainings of this node; once more leaves them running")


def _step(workers: Sequence[Worker], exchange: Exchange, gpus: GpuWatch, *, leaving: bool = False) -> None:
    orders, _ = exchange.orders()
    found = gpus.latest()
    for worker in workers:
        worker.order = orders.get(worker.number)
        worker.advance(leaving=leaving)
    exchange.offer(
        [worker.report(share(found, worker.number, len(workers)) if found else ()) for worker in workers]
    )


def _logs(workers: Sequence[Worker]) -> list[Log]:
    return [
        Log(worker.number, folder.generation, folder.path) for worker in workers for folder in worker.logs()
    ]
