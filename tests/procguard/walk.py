"""Agents, a network that loses and delays, and a group that advances: a whole cluster as values."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from platform_launch.procguard import asked
from platform_launch.procguard.advance import Moment, advance
from platform_launch.procguard.group import CannotStartError, Group, Step
from platform_launch.procguard.live import LiveWorker
from platform_launch.procguard.member import Member
from platform_launch.procguard.orders import order_for
from platform_launch.procguard.ranks import WorkerName
from platform_launch.procguard.shapes import GroupSettings, Phase
from platform_launch.procguard.wire import Action, Order, Report, State

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
BUSY = (State.RUNNING, State.STOPPING)


@dataclass
class Agent:
    """A worker and its agent, which writes down what it was ready for and what it started."""

    worker: WorkerName
    state: State = State.IDLE
    generation: int = 0
    exit_code: int | None = None
    asked: bool = False
    starts: list[int] = field(default_factory=list)
    answers: deque[Order] = field(default_factory=deque)

    def obey(self, order: Order) -> None:
        """Do what an answer says."""
        newer = order.generation > self.generation
        if self.state in BUSY:
            if newer or (order.action is Action.STOP and order.generation >= self.generation):
                self.state, self.asked = State.STOPPING, True
        elif order.action is Action.PREPARE and newer:
            self.state, self.generation, self.exit_code, self.asked = (
                State.READY,
                order.generation,
                None,
                False,
            )
        elif order.action is Action.RUN and self.state is State.READY and not newer:
            if order.generation == self.generation:
                self.state = State.RUNNING
                self.starts.append(self.generation)
        elif (
            order.action is Action.STOP and self.state is State.READY and order.generation >= self.generation
        ):
            self.state = State.IDLE

    def report(self) -> Report:
        """Say what is."""
        return Report(
            number=self.worker.number,
            state=self.state,
            generation=self.generation,
            exit_code=self.exit_code,
            asked=self.asked,
            ended_s_ago=1.0 if self.state is State.EXITED else None,
        )

    def chance(self, dice: random.Random) -> None:
        """Let its process end, well or badly, or let it lose its memory."""
        if self.state is State.STOPPING:
            self.state, self.exit_code = State.EXITED, -15
        elif self.state is State.RUNNING and dice.random() < 0.3:
            self.state, self.exit_code = State.EXITED, dice.choice((0, 0, 0, 1))
        elif self.state not in BUSY and dice.random() < 0.01:
            self.state, self.generation = State.IDLE, 0


class Walk:
    """One group of three workers; every step is drawn, and checked after."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.agents = [Agent(WorkerName(f"gn{n}", 0)) for n in range(3)]
        self.live = {agent.worker: LiveWorker(agent.worker) for agent in self.agents}
        settings = GroupSettings(
            master_addr="gn0",
            command="train",
            max_restarts=self.dice.choice((0, 2)),
            backoff_s=1,
            world_size=self.dice.choice((None, 2)),
        )
        workers = tuple(agent.worker for agent in self.agents)
        self.group = Group("g", settings, Phase.IDLE, AT, workers)
        self.clock_s, self.entered_s = 100.0, 100.0
        self.committed: set[int] = set()
        self.seen: set[Phase] = set()

    def members(self) -> dict[WorkerName, Member]:
        """Return what the server knows. Nobody is silent for so long that he is given up."""
        return {
            worker: Member(worker, live.report, live.same, self.dice.choice((0.0, 0.0, 20.0)), live.ended_at)
            for worker, live in self.live.items()
        }

    def step(self) -> None:
        """Do one thing that can happen."""
        agent = self.dice.choice(self.agents)
        what = self.dice.random()
        if what < 0.35:
            self._heartbeat(agent)
        elif what < 0.6 and agent.answers:
            agent.obey(agent.answers.popleft())
        elif what < 0.65:
            agent.chance(self.dice)
        elif what < 0.97:
            self._take(advance(self.group, self.members(), self._moment()))
        elif what < 0.993:
            self._ask()
        else:  # kill -9: what is not written down is gone
            self.group = replace(self.group, failed_at=None, silent=())
            self.live = {worker: LiveWorker(worker) for worker in self.live}
            self.entered_s = self.clock_s
        self.check()

    def check(self) -> None:
        """Assert what must hold at any time."""
        running = {agent.generation for agent in self.agents if agent.state in BUSY}
        assert len(running) <= 1, f"generations {running} run beside each other"
        for agent in self.agents:
            assert len(set(agent.starts)) == len(agent.starts), f"{agent.worker} started one twice"
            assert set(agent.starts) <= self.committed, f"{agent.worker} started before all were ready"

    def _heartbeat(self, agent: Agent) -> None:
        """Send a report; the answer may be lost, and comes later."""
        if self.dice.random() < 0.1:
            return
        live = self.live[agent.worker]
        live.take(agent.report(), self.clock_s)
        if self.dice.random() > 0.1:
            agent.answers.clear()  # an agent has one heartbeat under way
            agent.answers.append(order_for(self.group, agent.worker, agent.generation))

    def _ask(self) -> None:
        ask = self.dice.choice(("start", "start", "restart", "stop"))
        before, members = self.group, self.members()
        try:
            if ask == "stop":
                self._take(asked.stop(before, AT))
            else:
                self._take((asked.start if ask == "start" else asked.restart)(before, members, AT))
        except CannotStartError as error:
            raise AssertionError(error) from error
        if ask == "start":
            again = asked.start(self.group, members, AT)
            assert again.group is self.group, "starting twice is one start"

    def _take(self, step: Step) -> None:
        before, after = self.group, step.group
        assert after.generation >= before.generation
        if after.generation > before.generation:
            assert after.phase is Phase.PREPARING
        if after.phase is Phase.RUNNING and before.phase is Phase.PREPARING:
            run = after.run
            assert run is not None
            reports = [self.live[place.worker].report for place in run.places]
            assert all(r and r.state is State.READY and r.generation == run.generation for r in reports)
            self.committed.add(after.generation)
        if after.phase is not before.phase:
            self.entered_s = self.clock_s
        self.seen.add(after.phase)
        self.group = after

    def _moment(self) -> Moment:
        self.clock_s += self.dice.choice((0.5, 0.5, 3.0))
        return Moment(self.clock_s, self.clock_s - self.entered_s, AT)
