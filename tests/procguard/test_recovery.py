"""Nothing that was answered is lost by kill -9, and nothing that is only heard stays in memory."""

from __future__ import annotations

import signal
import subprocess
import sys
import tracemalloc
from itertools import islice
from pathlib import Path

from platform_launch.procguard.api.shapes.groups import GroupPhase
from platform_launch.procguard.api.wire import WorkerReport, WorkerState
from platform_launch.procguard.database import serving
from tests.procguard.cluster import Cluster

# Makes groups as fast as it can, and names each once it was told that it is made.
MAKING = """
import sys
from itertools import count
from platform_launch.procguard.control.control import Control
from platform_launch.procguard.database import serving
from platform_launch.procguard.api.shapes.groups import NewGroup
with serving(sys.argv[1]) as database:
    control = Control(database.store, log_size=lambda worker, generation: 0, heartbeat_s=2)
    for number in count():
        control.create_group(NewGroup(name=f"g{number}"), "ann")
        print(f"g{number}", flush=True)
"""


def test_kill_9_while_it_writes(database_url: str) -> None:
    command = [sys.executable, "-c", MAKING, database_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            answered = [line.strip() for line in islice(server.stdout, 20)]
        finally:
            server.send_signal(signal.SIGKILL)
        answered += [line.strip() for line in server.stdout if line.endswith("\n")]
    assert len(answered) >= 20
    with serving(database_url) as database:
        cluster = Cluster(database.store)
        there = {group.name for group in cluster.control.queries.groups()}
        assert there >= set(answered)
        assert len(there) - len(answered) <= 1, "at most the one that was being answered"
        told = {event.object for event in cluster.control.queries.events(limit=1000)}
        assert told == there, "a change and its entry in the audit log are written together"


def test_heartbeats_leave_nothing_behind(tmp_path: Path) -> None:
    with serving(f"sqlite:///{tmp_path}/procguard.db") as database:
        cluster = Cluster(database.store)
        generation = cluster.running("gn6", "gn7")

        def quarters(number: int) -> None:
            for beat in range(number * 450):
                cluster.clock_s += 2
                for node in ("gn6", "gn7"):
                    size = cluster.logs[f"{node}-0", generation] = beat * 100
                    report = WorkerReport(
                        number=0, state=WorkerState.RUNNING, generation=generation, log_bytes=size
                    )
                    assert cluster.beat(node, report)[0].log_offset == size
                cluster.control.tick()

        quarters(1)
        tracemalloc.start()
        try:
            quarters(1)
            before, _ = tracemalloc.get_traced_memory()
            quarters(2)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert after - before < 10_000, "bytes, after 1,800 heartbeats"
        assert cluster.control.queries.group("g").phase is GroupPhase.RUNNING
        assert len(cluster.control.queries.events()) < 10, "nothing is written for heartbeats"
