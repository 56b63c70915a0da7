"""Agents, a network that loses and delays, and a group that advances: a whole cluster as values."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timezone

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.shapes.groups import GroupPhase, GroupSettings
from platform_launch.procguard.api.wire import OrderAction, WorkerOrder, WorkerReport, WorkerState
from platform_launch.procguard.control.orders import order_for
from platform_launch.procguard.core import phases
from platform_launch.procguard.core.group import CannotStartError, Group, GroupStep
from platform_launch.procguard.core.phases import StepTime, next_step
from platform_launch.procguard.core.registry import WorkerEntry, WorkerSnapshot

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
BUSY = (WorkerState.RUNNING, WorkerState.STOPPING)


@dataclass
class Agent:
    """A worker and its agent, which writes down what it was ready for and what it started."""

    worker: WorkerName
    state: WorkerState = WorkerState.IDLE
    generation: int = 0
    exit_code: int | None = None
    stop_requested: bool = False
    starts: list[int] = field(default_factory=list)
    answers: deque[WorkerOrder] = field(default_factory=deque)

    def obey(self, order: WorkerOrder) -> None:
        """Do what an answer says."""
        newer = order.generation > self.generation
        if self.state in BUSY:
            if newer or (order.action is OrderAction.STOP and order.generation >= self.generation):
                self.state, self.stop_requested = WorkerState.STOPPING, True
        elif order.action is OrderAction.PREPARE and newer:
            self.state, self.generation, self.exit_code, self.stop_requested = (
                WorkerState.READY,
                order.generation,
                None,
                False,
            )
        elif order.action is OrderAction.RUN and self.state is WorkerState.READY and not newer:
            if order.generation == self.generation:
                self.state = WorkerState.RUNNING
                self.starts.append(self.generation)
        elif (
            order.action is OrderAction.STOP
            and self.state is WorkerState.READY
            and order.generation >= self.generation
        ):
            self.state = WorkerState.IDLE

    def report(self) -> WorkerReport:
        """Say what is."""
        return WorkerReport(
            number=self.worker.number,
            state=self.state,
            generation=self.generation,
            exit_code=self.exit_code,
            stop_requested=self.stop_requested,
            ended_s_ago=1.0 if self.state is WorkerState.EXITED else None,
        )

    def chance(self, dice: random.Random) -> None:
        """Let its process end, well or badly, or let it lose its memory."""
        if self.state is WorkerState.STOPPING:
            self.state, self.exit_code = WorkerState.EXITED, -15
        elif self.state is WorkerState.RUNNING and dice.random() < 0.3:
            self.state, self.exit_code = WorkerState.EXITED, dice.choice((0, 0, 0, 1))
        elif self.state not in BUSY and dice.random() < 0.01:
            self.state, self.generation = WorkerState.IDLE, 0


class Walk:
    """One group of three workers; every step is drawn, and checked after."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.agents = [Agent(WorkerName(f"gn{n}", 0)) for n in range(3)]
        self.live = {agent.worker: WorkerEntry(agent.worker) for agent in self.agents}
        settings = GroupSettings(
            master_addr="gn0",
            command="train",
            max_restarts=self.dice.choice((0, 2)),
            backoff_s=1,
            world_size=self.dice.choice((None, 2)),
        )
        workers = tuple(agent.worker for agent in self.agents)
        self.group = Group(
            name="g", settings=settings, phase=GroupPhase.IDLE, phase_since=AT, workers=workers
        )
        self.clock_s, self.entered_s = 100.0, 100.0
        self.committed: set[int] = set()
        self.seen: set[GroupPhase] = set()

    def members(self) -> dict[WorkerName, WorkerSnapshot]:
        """Return what the server knows. Nobody is silent for so long that he is given up."""
        return {
            worker: WorkerSnapshot(
                worker, live.report, live.same, self.dice.choice((0.0, 0.0, 20.0)), live.ended_at
            )
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
            self._take(next_step(self.group, self.members(), self._moment()))
        elif what < 0.993:
            self._ask()
        else:  # kill -9: what is not written down is gone
            self.group = self.group.but(failed_at=None, silent=())
            self.live = {worker: WorkerEntry(worker) for worker in self.live}
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
        live.receive(agent.report(), self.clock_s)
        if self.dice.random() > 0.1:
            agent.answers.clear()  # an agent has one heartbeat under way
            agent.answers.append(order_for(self.group, agent.worker, agent.generation))

    def _ask(self) -> None:
        ask = self.dice.choice(("start", "start", "restart", "stop"))
        before, members = self.group, self.members()
        try:
            if ask == "stop":
                self._take(phases.stop(before, AT))
            else:
                self._take((phases.start if ask == "start" else phases.restart)(before, members, AT))
        except CannotStartError as error:
            raise AssertionError(error) from error
        if ask == "start":
            again = phases.start(self.group, members, AT)
            assert again.group is self.group, "starting twice is one start"

    def _take(self, step: GroupStep) -> None:
        before, after = self.group, step.group
        assert after.generation >= before.generation
        if after.generation > before.generation:
            assert after.phase is GroupPhase.PREPARING
        if after.phase is GroupPhase.RUNNING and before.phase is GroupPhase.PREPARING:
            run = after.run
            assert run is not None
            reports = [self.live[place.worker].report for place in run.places]
            assert all(r and r.state is WorkerState.READY and r.generation == run.generation for r in reports)
            self.committed.add(after.generation)
        if after.phase is not before.phase:
            self.entered_s = self.clock_s
        self.seen.add(after.phase)
        self.group = after

    def _moment(self) -> StepTime:
        self.clock_s += self.dice.choice((0.5, 0.5, 3.0))
        return StepTime(self.clock_s, self.clock_s - self.entered_s, AT)
