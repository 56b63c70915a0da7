"""300 nodes of a real server, in its own process: they beat through the control, not over the network."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from platform_launch.procguard.api.shapes.groups import GroupSettings, NewGroup
from platform_launch.procguard.api.wire import (
    ForeignGpuProcess,
    GpuReport,
    Heartbeat,
    JoinRequest,
    MachineReport,
    OrderAction,
    WorkerOrder,
    WorkerReport,
    WorkerState,
)
from tests.procguard.serving import Served

WORKERS = 8


class Crowd:
    """Nodes that do at once what they are told. Every node has 8 workers, each with a GPU."""

    def __init__(self, server: Served, nodes: int) -> None:
        self.control = server.parts.control
        self.names = [f"gpu-{number:03}" for number in range(nodes)]
        self.reports: dict[str, dict[int, WorkerReport]] = {}
        self.silent: set[str] = set()
        self._leave = threading.Event()
        for number, name in enumerate(self.names):
            labels = ("h100" if number % 3 else "a100",)
            self.control.join(
                JoinRequest(
                    node=name,
                    instance=f"of-{name}",
                    workers=WORKERS,
                    hostname=f"{name}.cluster.example",
                    version="0.1.0",
                    command=("train",),
                    labels=labels,
                )
            )
            self.reports[name] = {
                worker: WorkerReport(number=worker, state=WorkerState.IDLE, gpus=(self._gpu(worker, 0.0),))
                for worker in range(WORKERS)
            }
        self.beat()
        self._thread = threading.Thread(target=self._beat_on, daemon=True)
        self._thread.start()

    def beat(self) -> None:
        """Let every node send a heartbeat and do what its answer says."""
        machine = MachineReport(
            cpu_percent=37, memory_used_gib=512, memory_total_gib=2015, disk_free_gib=811, disk_total_gib=7000
        )
        for number, name in enumerate(self.names):
            if name in self.silent:
                continue
            held = ForeignGpuProcess(gpu=0, pid=4711, user="eve", name="python", memory_gib=30.5)
            beat = Heartbeat(
                node=name,
                instance=f"of-{name}",
                machine=machine,
                gpu_processes=(held,) if number % 97 == 96 else (),
                workers=tuple(self.reports[name].values()),
            )
            for worker, order in self.control.heartbeat(name, beat).orders.items():
                self._follow(name, worker, order)

    def group(self, name: str, first: int, nodes: int, **settings: object) -> None:
        """Create a group of whole nodes, and start it."""
        members = self.names[first : first + nodes]
        wanted = GroupSettings.model_validate(
            {"master_addr": members[0], "command": "python train.py --config big.yaml", **settings}
        )
        self.control.create_group(NewGroup(name=name, settings=wanted), "op", ["op"])
        self.control.move([f"{one}-{number}" for one in members for number in range(WORKERS)], name, "op")
        self.control.start(name, "op")

    def end(self, worker: str, exit_code: int, verdict: str = "") -> None:
        """Let a worker's process end."""
        name, _, number = worker.rpartition("-")
        self._report(
            name, int(number), state=WorkerState.EXITED, exit_code=exit_code, ended_s_ago=0.0, verdict=verdict
        )

    def close(self) -> None:
        """End the heartbeats."""
        self._leave.set()
        self._thread.join()

    def _beat_on(self) -> None:
        while not self._leave.wait(1.0):
            self.beat()

    def _report(self, name: str, worker: int, **news: object) -> None:
        self.reports[name][worker] = self.reports[name][worker].model_copy(update=news)

    @staticmethod
    def _gpu(index: int, percent: float) -> GpuReport:
        return GpuReport(
            index=index,
            name="NVIDIA H100 80GB HBM3",
            utilization_percent=percent,
            memory_used_gib=0.7 * percent,
            memory_total_gib=79.6,
        )

    def _follow(self, name: str, worker: int, order: WorkerOrder) -> None:
        report = self.reports[name][worker]
        same = report.generation == order.generation
        if order.action is OrderAction.PREPARE and not same:
            self._report(name, worker, state=WorkerState.READY, generation=order.generation, exit_code=None)
        elif order.action is OrderAction.RUN and report.state is WorkerState.READY and same:
            gpus = (self._gpu(worker, 60.0 + 5 * worker),)
            self._report(name, worker, state=WorkerState.RUNNING, pid=4000 + worker, gpus=gpus)
        elif order.action is OrderAction.STOP and report.state in (WorkerState.RUNNING, WorkerState.READY):
            self._report(
                name, worker, state=WorkerState.EXITED, exit_code=143, ended_s_ago=0.0, stop_requested=True
            )


@contextmanager
def crowd(server: Served, nodes: int = 300) -> Iterator[Crowd]:
    """Let so many nodes beat until the end of the block."""
    found = Crowd(server, nodes)
    try:
        yield found
    finally:
        found.close()
