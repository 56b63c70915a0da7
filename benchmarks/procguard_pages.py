"""What each page of a ProcGuard server costs with thousands of nodes, in CPU time.

    python benchmarks/procguard_pages.py [NODES]        (default 5000)

CPU time holds on a busy machine too. The server's own app runs in this process, without a socket. Before each
look every second node has sent a heartbeat, as in a second of real time, so that nothing that was counted
before can be shown again. For each page:

- the CPU time of all threads, the median of several looks, and how many heartbeats cost as much;
- the longest time for which one callback held the event loop, the worst of all looks: for so long a heartbeat
  waits that comes at the worst moment.

A heartbeat is the peer: its JSON is read, taken in and answered, without a socket as well.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.shapes.groups import GroupSettings, NewGroup
from platform_launch.procguard.api.shapes.people import UserRole
from platform_launch.procguard.api.wire import (
    GpuReport,
    Heartbeat,
    JoinRequest,
    MachineReport,
    WorkerReport,
    WorkerState,
)
from platform_launch.procguard.core.control import Control
from platform_launch.procguard.core.ledger import WorkerRow
from platform_launch.procguard.core.registry import NodeRecord
from platform_launch.procguard.database import serving
from platform_launch.procguard.server.app import served_app
from platform_launch.procguard.server.assembly import assembled
from platform_launch.procguard.server.run import let_heartbeats_pass
from platform_launch.procguard.server.settings import ServerSettings

NODES = 5000
GROUP = 1000
LOOKS = 7
GOAL_HELD_S = 0.02
PAGES = (
    "/",
    "/fragments/totals",
    "/fragments/groups",
    "/fragments/workers",
    "/fragments/workers?text=n49",
    "/nodes",
    "/fragments/nodes",
    "/fragments/nodes?sort=gpu",
    "/fragments/nodes?state=busy",
    "/groups/training",
    "/fragments/groups/training",
    "/groups/training/settings",
    "/nodes/n0001",
    "/api/v1/workers",
    "/api/v1/nodes",
    "/metrics",
)


def name(number: int) -> str:
    """Return a node's name."""
    return f"n{number:04}"


def write_down(url: str, nodes: int) -> None:
    """Let the database hold nodes that have joined."""
    records = [
        NodeRecord(
            JoinRequest(
                node=name(number),
                instance=f"load-{name(number)}",
                workers=1,
                hostname=f"{name(number)}.load",
                version="1",
                command=("train",),
            ),
            f"{number:064}",
        )
        for number in range(nodes)
    ]
    with serving(url) as database, database.store.change() as change:
        for record in records:
            change.put_node(record)
        change.put_workers(WorkerRow(WorkerName(record.name, 0), None) for record in records)


def heartbeat(number: int, state: WorkerState, generation: int, percent: int) -> bytes:
    """Return a heartbeat's body."""
    gpu = GpuReport(
        index=0,
        name="NVIDIA H100 80GB HBM3",
        utilization_percent=percent,
        memory_used_gib=61.3,
        memory_total_gib=79.6,
    )
    machine = MachineReport(cpu_percent=percent, memory_used_gib=211.5, memory_total_gib=2015.4)
    worker = WorkerReport(number=0, state=state, generation=generation, gpus=(gpu,))
    said = Heartbeat(node=name(number), instance=f"load-{name(number)}", machine=machine, workers=(worker,))
    return said.model_dump_json().encode()


class Cluster:
    """All nodes, the first of them a group that runs."""

    def __init__(self, control: Control, nodes: int) -> None:
        self._control = control
        self._group = min(GROUP, nodes)
        self._beats = 0
        self._bodies = [heartbeat(number, WorkerState.IDLE, 0, 7) for number in range(nodes)]
        self._send(range(nodes))
        settings = GroupSettings(master_addr=name(0))
        control.create_group(NewGroup(name="training", settings=settings), "admin")
        control.move([f"{name(number)}-0" for number in range(self._group)], "training", "admin")
        generation = control.start("training", "admin").group.generation
        for state in (WorkerState.READY, WorkerState.RUNNING):
            for number in range(self._group):
                self._bodies[number] = heartbeat(number, state, generation, 99)
            self._send(range(self._group))
            control.tick()
        assert control.queries.group("training").phase.value == "running"

    def beat(self) -> None:
        """Let every second node be heard, and be seen to be."""
        self._beats += 1
        self._send(range(self._beats % 2, len(self._bodies), 2))
        self._control.queries.changed()

    def _send(self, nodes: range) -> None:
        for number in nodes:
            said = Heartbeat.model_validate_json(self._bodies[number])
            assert self._control.heartbeat(said.node, said).document

    def cost_of_one(self) -> float:
        """Return the CPU time of a heartbeat."""
        took = []
        for _ in range(LOOKS):
            began = time.thread_time()
            self.beat()
            took.append((time.thread_time() - began) / (len(self._bodies) / 2))
        return statistics.median(took)


@contextmanager
def watched() -> Iterator[list[float]]:
    """Yield the CPU times for which callbacks hold the event loop of this thread."""
    held: list[float] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        held.append(time.thread_time() - began)

    asyncio.Handle._run = timed  # type: ignore[assignment,method-assign]
    try:
        yield held
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


async def look(client: httpx.AsyncClient, path: str, cluster: Cluster) -> tuple[float, float]:
    """Return what a page costs, and the longest that it held the event loop."""
    took, longest = [], 0.0
    for _ in range(LOOKS):
        cluster.beat()
        await asyncio.sleep(0)
        began = time.process_time()
        with watched() as held:
            answer = await client.get(path)
        took.append(time.process_time() - began)
        longest = max(longest, *held)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:200]}"
    return statistics.median(took), longest


async def measure(nodes: int) -> bool:
    """Print what each page costs; tell whether none holds the event loop for too long."""
    with tempfile.TemporaryDirectory() as folder:
        settings = ServerSettings(data=Path(folder), listen="127.0.0.1:0")
        write_down(settings.database_url, nodes)
        with assembled(settings, "token") as parts:
            parts.control_loop.stop()  # what it does twice a second is none of a page's cost
            parts.accounts.add("somebody", UserRole.OPERATOR, "")
            account = parts.accounts.find("somebody")
            assert account is not None
            token = parts.sessions.begin(account)[0]
            cluster = Cluster(parts.control, nodes)
            let_heartbeats_pass()
            beat = cluster.cost_of_one()
            began = time.thread_time()
            parts.control.tick()
            tick = time.thread_time() - began
            print(f"{nodes} nodes, a group of {min(GROUP, nodes)} runs; in CPU time:")
            print(f"  a heartbeat {beat * 1e6:.0f} µs, the control loop's look {tick * 1e3:.1f} ms")
            app = httpx.ASGITransport(served_app(parts, asyncio.Event()))
            headers = {"Authorization": f"Bearer {token}"}
            good = True
            async with httpx.AsyncClient(transport=app, base_url="http://server", headers=headers) as client:
                for path in PAGES:
                    cpu, held = await look(client, path, cluster)
                    good &= held < GOAL_HELD_S
                    print(
                        f"  {path:32} {cpu * 1e3:6.1f} ms = {cpu / beat:5.0f} heartbeats,"
                        f"  event loop held for {held * 1e3:4.1f} ms at most"
                    )
            gc.unfreeze()
            return good


def main() -> int:
    """Fail where a page holds the event loop for longer than the goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nodes", nargs="?", type=int, default=NODES, help="default: %(default)s")
    good = asyncio.run(measure(parser.parse_args().nodes))
    print(
        f"{'within' if good else 'outside'} the goal: none holds the event loop for {GOAL_HELD_S * 1e3:g} ms"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
