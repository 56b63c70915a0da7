"""How long N nodes take to meet, once the last has arrived.

    python benchmarks/rendezvous_scale.py [NODES...]        (default 2 16 128 1024)

Everything is real but the number of machines: node 0 in one process, and N - 1 guests, each with
a connection and a fingerprint of its own, in four processes that take turns with theirs.
Measured is the time from the start signal, when all are connected and none has a ticket, until the last of
them has read the verdict. That bounds "after the last arrives" from above: here they all arrive in that time.

The peer is the barrier that a script can have with torch alone: the same store, the same connections,
``store.add`` by everyone and ``store.wait`` for the last. It compares nothing and names nobody.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import sys
import time
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from typing import Any

from platform_launch.launch.link import ENVIRONMENT
from platform_launch.rendezvous.coordinator import Coordinator
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.messages import ConsoleLine
from platform_launch.rendezvous.participant import NoRendezvousError, Participant
from platform_launch.rendezvous.run.gathering import Gathering
from platform_launch.rendezvous.run.state import PURPOSE, RunPhase, RunState
from platform_launch.rendezvous.store import Store

PROCESSES = 4
GOAL_S = 5.0
KEPT: list[Any] = []  # a store lives as long as its object


def fingerprint(rank: int, nnodes: int) -> Fingerprint:
    """A node with as many facts as a real one has; every seventh has another driver."""
    facts = {f"fact {number}": "a value of usual length" for number in range(40)}
    facts["GPU driver"] = "570.86.15" if rank % 7 else "535.54.03"
    return Fingerprint(
        rank, nnodes, f"gpu-{rank:04}", (f"10.0.{rank // 256}.{rank % 256}",), str(rank), "job", 8, facts
    )


def take_part(ranks: range, nnodes: int, port: int, start: Barrier, done: Any) -> None:
    """Bring several nodes to the rendezvous; report when the last of them knew the verdict."""
    stores = [Store.connect("127.0.0.1", port, limit_s=60) for _ in ranks]
    waiting = [enter(store, fingerprint(rank, nnodes)) for store, rank in zip(stores, ranks, strict=True)]
    start.wait()
    for participant in waiting:
        participant.join()
    pause_s = min(0.1 + nnodes / 2500, 0.5)  # as arriving.Arrival
    while waiting:
        for participant in waiting:
            participant.heartbeat()
        waiting = [participant for participant in waiting if not is_running(participant)]
        if waiting:
            time.sleep(pause_s)
    done.put(time.monotonic())


def enter(store: Store, me: Fingerprint) -> Participant:
    """Wait for the rendezvous to open: before the clock runs."""
    while True:
        try:
            return Participant(store, me, purpose=PURPOSE)
        except NoRendezvousError:
            time.sleep(0.1)


def is_running(participant: Participant) -> bool:
    """Whether a node has heard that all are there."""
    state = participant.state(RunState)
    return state is not None and state.phase is RunPhase.RUNNING


def meet_at_barrier(ranks: range, nnodes: int, port: int, start: Barrier, done: Any) -> None:
    """The peer: add, and wait for the last."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    limit = timedelta(seconds=60)
    stores: list[Any] = [
        TCPStore("127.0.0.1", port, None, False, limit, wait_for_workers=False) for _ in ranks
    ]
    start.wait()
    for store in stores:
        if store.add("count", 1) == nnodes:
            store.set("all", "1")
    for store in stores:
        store.wait(["all"], timedelta(seconds=60))
    done.put(time.monotonic())


def lead(port: int, nnodes: int, start: Barrier) -> float:
    """Node 0, whose own participant comes with the others; returns when it began."""
    me = fingerprint(0, nnodes)
    said: list[ConsoleLine] = []
    coordinator = Coordinator(Store.serve(port, limit_s=60), me, purpose=PURPOSE, say=said.append)
    gathering = Gathering(coordinator, me, timeout_s=600, node_timeout_s=12, say=said.append)
    participant = Participant(Store.connect("127.0.0.1", port, limit_s=60), me, purpose=PURPOSE)
    start.wait()
    began = time.monotonic()
    participant.join()
    while gathering.step().phase is RunPhase.WAITING:
        participant.heartbeat()
        time.sleep(min(0.05 + nnodes / 4000, 0.25))  # as leading.Lead
    assert gathering.state.phase is RunPhase.RUNNING, gathering.state
    KEPT.append(coordinator)
    return began


def lead_barrier(port: int, nnodes: int, start: Barrier) -> float:
    """The peer's node 0."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore("127.0.0.1", port, None, True, timedelta(seconds=60), wait_for_workers=False)
    start.wait()
    began = time.monotonic()
    if store.add("count", 1) == nnodes:
        store.set("all", "1")
    store.wait(["all"], timedelta(seconds=60))
    KEPT.append(store)
    return began


def seconds(nnodes: int, leader: Any, guest: Any) -> float:
    """Run one meeting and return how long it took."""
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    shares = [range(1 + index, nnodes, PROCESSES) for index in range(min(PROCESSES, nnodes - 1))]
    start, done = context.Barrier(len(shares) + 1), context.Queue()
    workers = [context.Process(target=guest, args=(s, nnodes, port, start, done)) for s in shares]
    for worker in workers:
        worker.start()
    began = leader(port, nnodes, start)
    ended = max([time.monotonic(), *(done.get(timeout=60) for _ in workers)])
    for worker in workers:
        worker.join()
    KEPT.clear()
    return float(ended - began)


def main() -> int:
    """Print one line a size, and whether the biggest meeting was in time and no worse than linear."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nodes", nargs="*", type=int, default=[2, 16, 128, 1024], help="default: %(default)s")
    sizes = parser.parse_args().nodes
    os.environ.update(ENVIRONMENT)  # as every helper
    ours = {}
    for nnodes in sizes:
        ours[nnodes] = seconds(nnodes, lead, take_part)
        peer = seconds(nnodes, lead_barrier, meet_at_barrier)
        print(f"{nnodes:5} nodes: roll call {ours[nnodes]:.2f} s, bare barrier {peer:.2f} s", flush=True)
    first, last = sizes[0], sizes[-1]
    growth = ours[last] / ours[first]
    print(f"{last} nodes in {ours[last]:.2f} s (goal {GOAL_S:g} s)")
    print(f"{last // first} times the nodes take {growth:.1f} times as long (goal: no more than linear)")
    return 0 if ours[last] <= GOAL_S and growth <= last / first else 1


if __name__ == "__main__":
    sys.exit(main())
