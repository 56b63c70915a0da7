"""A Control whose clock tests turn, and agents that say what they are told to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from platform_launch.procguard.api.shapes.groups import GroupSettings, NewGroup
from platform_launch.procguard.api.wire import (
    Heartbeat,
    JoinRequest,
    WorkerOrder,
    WorkerOrders,
    WorkerReport,
    WorkerState,
)
from platform_launch.procguard.control.control import Control
from platform_launch.procguard.core.registry import ServerClock
from platform_launch.procguard.database.store import DatabaseStore


@dataclass
class Cluster:
    """A server's Control. Only tests move ``clock_s``; ``logs`` are sizes by worker and generation."""

    store: DatabaseStore
    clock_s: float = 1000.0
    logs: dict[tuple[str, int], int] = field(default_factory=dict)
    credentials: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.control = self._started()

    def _started(self) -> Control:
        return Control(
            self.store,
            log_size=lambda worker, generation: self.logs.get((worker, generation), 0),
            heartbeat_s=2.0,
            clock=ServerClock(lambda: self.clock_s),
        )

    def kill_and_start(self) -> None:
        """Let a new server take over what is written down, and nothing else."""
        self.control = self._started()

    def join(self, node: str, workers: int = 1, instance: str = "", **about: Any) -> str:
        """Let a node join; return its credential."""
        mine = instance or f"instance-{node}"
        about = {"credential": self.credentials.get(mine, ""), **about}
        join = JoinRequest(node=node, instance=mine, workers=workers, hostname=node, **about)
        self.credentials[mine] = self.control.join(join).credential
        return self.credentials[mine]

    def beat(self, node: str, *reports: WorkerReport, instance: str = "") -> dict[int, WorkerOrder]:
        """Send a heartbeat; return the orders."""
        return self.answer(node, *reports, instance=instance or f"instance-{node}").orders

    def answer(self, node: str, *reports: WorkerReport, **about: Any) -> WorkerOrders:
        """Send a heartbeat that says more of its node; return the whole answer."""
        beat = Heartbeat.model_validate(
            {"node": node, "instance": f"instance-{node}", "workers": reports, **about}
        )
        return self.control.heartbeat(node, beat)

    def say(
        self, node: str, state: WorkerState = WorkerState.IDLE, generation: int = 0, **about: Any
    ) -> WorkerOrder:
        """Send a heartbeat of a node's only worker; return its order."""
        return self.beat(node, WorkerReport(number=0, state=state, generation=generation, **about))[0]

    def wait(self, seconds: float, *nodes: str) -> None:
        """Let time pass with the control loop at work, and these nodes heard every second as they were."""
        for _ in range(round(seconds)):
            self.clock_s += 1
            for node in nodes:
                live = self.control._registry.nodes[node]
                self.beat(node, *(worker.report for worker in live.workers.values() if worker.report))
            self.control.tick()

    def group_of(self, *nodes: str, name: str = "g", **settings: Any) -> None:
        """Make a group of one worker of each node; the first is the master."""
        for node in nodes:
            self.join(node)
        wanted = {"master_addr": nodes[0], "command": "train", "fail_after_s": 60, **settings}
        self.control.create_group(NewGroup(name=name, settings=GroupSettings(**wanted)), "ann")
        self.control.move([f"{node}-0" for node in nodes], name, "ann")

    def running(self, *nodes: str, name: str = "g", **settings: Any) -> int:
        """Make a group and start it; return the generation that runs."""
        self.group_of(*nodes, name=name, **settings)
        generation = self.control.start(name, "ann").group.generation
        for state in (WorkerState.READY, WorkerState.RUNNING):
            for node in nodes:
                self.say(node, state, generation)
            self.control.tick()
        return generation
