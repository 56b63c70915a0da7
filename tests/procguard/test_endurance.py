"""A day of heartbeats by a clock that the test turns: what is only heard leaves memory as it was."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from platform_launch.procguard.api.refused import RequestRefused
from platform_launch.procguard.api.shapes.groups import GroupPhase, GroupSettings, NewGroup
from platform_launch.procguard.api.shapes.history import EventFilter
from platform_launch.procguard.api.wire import (
    GpuReport,
    Heartbeat,
    JoinRequest,
    OrderAction,
    WorkerOrder,
    WorkerReport,
    WorkerState,
)
from platform_launch.procguard.control.control import Control
from platform_launch.procguard.core.registry import ServerClock, utc_now
from platform_launch.procguard.database import serving, store
from platform_launch.procguard.server.logs.store import Logs

EVERY_S = 4.0
HOUR = round(3600 / EVERY_S)
NODES, GROUPS = 24, 3


class Node:
    """A worker that does what it is told; its training ends by itself after ``lasts`` heartbeats."""

    def __init__(self, number: int) -> None:
        self.name = f"n{number:02}"
        self.lasts = 350 + 5 * number
        self.fails = number % 8 == 5
        self.state = (WorkerState.IDLE, 0)
        self.since = 0
        self._beats: list[Heartbeat] = []

    def beat(self, control: Control, at: int) -> None:
        orders = control.heartbeat(self.name, self._said()[at % 4]).orders
        state = self._next(orders[0], at)
        if state != self.state:
            self.state, self.since, self._beats = state, at, []

    def _next(self, order: WorkerOrder, at: int) -> tuple[WorkerState, int]:
        state, generation = self.state
        if order.action is OrderAction.PREPARE and order.generation > generation:
            return WorkerState.READY, order.generation
        if order.action is OrderAction.RUN and state is WorkerState.READY:
            return WorkerState.RUNNING, generation
        if order.action is OrderAction.STOP and state in (WorkerState.READY, WorkerState.RUNNING):
            return WorkerState.IDLE, generation
        if state is WorkerState.RUNNING and at - self.since > self.lasts:
            return WorkerState.EXITED, generation
        return self.state

    def _said(self) -> list[Heartbeat]:
        state, generation = self.state
        code = int(self.fails) if state is WorkerState.EXITED else None
        if not self._beats:
            self._beats = [
                Heartbeat(
                    node=self.name,
                    instance=f"instance-{self.name}",
                    workers=(
                        WorkerReport(
                            number=0,
                            state=state,
                            generation=generation,
                            exit_code=code,
                            ended_s_ago=None if code is None else 0.5,
                            gpus=(GpuReport(index=0, utilization_percent=percent),),
                        ),
                    ),
                )
                for percent in (5.0, 50.0, 75.0, 99.0)
            ]
        return self._beats


@pytest.mark.nightly
def test_a_day_leaves_memory_as_it_was(tmp_path: Path) -> None:
    clock_s = 1000.0
    logs = Logs(tmp_path / "logs", 1 << 20)
    nodes = [Node(number) for number in range(NODES)]
    blocks: list[int] = []
    with serving(f"sqlite:///{tmp_path}/procguard.db") as database:
        control = Control(
            database.store, log_size=logs.size, heartbeat_s=EVERY_S, clock=ServerClock(lambda: clock_s)
        )
        for node in nodes:
            control.join(JoinRequest(node=node.name, instance=f"instance-{node.name}", workers=1))
        for group in range(GROUPS):
            mine = nodes[group :: GROUPS + 1]
            settings = GroupSettings(master_addr=mine[0].name, command="train", max_restarts=2, backoff_s=4)
            control.create_group(NewGroup(name=f"g{group}", settings=settings), "ann")
            control.move([f"{node.name}-0" for node in mine], f"g{group}", "ann")
        for at in range(24 * HOUR):
            clock_s += EVERY_S
            for node in nodes:
                node.beat(control, at)
            control.tick()
            if at % 150 == 0:
                look(control)
            if at % HOUR == HOUR - 1:
                gc.collect()
                blocks.append(sys.getallocatedblocks())
        phases = Counter(event.action for event in control.queries.events(limit=1000))
        assert min(phases[action] for action in ("start", "running", "failing", "finished", "failed")) > 5
        assert max(group.generation for group in control.queries.groups()) > 40
    # Every kind of run is seen within two hours; what each leaves behind would be there twenty times more.
    assert max(blocks[-6:]) - max(blocks[2:8]) < 1_000, f"pieces of memory at the end of each hour: {blocks}"


def look(control: Control) -> None:
    """Look as people do, and start what rests."""
    control.queries.glances()
    for group in control.queries.groups():
        control.queries.preview(group.name)
        if group.phase in (GroupPhase.IDLE, GroupPhase.FINISHED, GroupPhase.FAILED):
            with suppress(RequestRefused):
                control.start(group.name, "ann")


def test_the_audit_log_keeps_the_newest(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "KEPT_EVENTS", 300)
    with serving(database_url) as database:
        with database.store.change() as change:
            for number in range(1, 1201):
                change.event(utc_now(), "ann", "look", f"g{number}")
        kept = database.store.events(None, 1000, EventFilter())
        assert [event.object for event in kept] == [f"g{number}" for number in range(1200, 700, -1)]
