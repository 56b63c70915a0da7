"""How long N nodes take to meet, once the last has arrived.

    python benchmarks/rollcall_scale.py [NODES...]        (default 2 16 128 1024)

Everything is real but the number of machines: node 0 in one process, and N - 1 guests, each with
a connection and a fingerprint of its own, in four processes that take turns with theirs.
Measured is the time from the start signal, when all are connected and none has a ticket, until the last of
them has read the verdict. That bounds "after the last arrives" from above: here they all arrive in that time.

The peer is the barrier that a script can have with torch alone: the same store, the same connections,
``store.add`` by everyone and ``store.wait`` for the last. It compares nothing and names nobody.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from typing import Any

from platform_launch.node.link import ENVIRONMENT
from platform_launch.rollcall.fingerprint import Fingerprint
from platform_launch.rollcall.guest import Guest
from platform_launch.rollcall.host import Host
from platform_launch.rollcall.store import HOST, Store, open_store

PROCESSES = 4
GOAL_S = 5.0


def fingerprint(rank: int, nnodes: int) -> Fingerprint:
    """A node with as many facts as a real one has; every seventh has another driver."""
    facts = {f"fact {number}": "a value of usual length" for number in range(40)}
    facts["GPU driver"] = "570.86.15" if rank % 7 else "535.54.03"
    return Fingerprint(
        rank, nnodes, f"gpu-{rank:04}", (f"10.0.{rank // 256}.{rank % 256}",), str(rank), "job", 8, facts
    )


def attend(ranks: range, nnodes: int, port: int, start: Barrier, done: Any) -> None:
    """Bring several nodes to the roll call; report when the last of them knew the verdict."""
    guests = [
        Guest(open_store("127.0.0.1", port, hosting=False), fingerprint(rank, nnodes)) for rank in ranks
    ]
    start.wait()
    for guest in guests:
        guest.arrive()
    waiting, pause_s = guests, min(0.1 + nnodes / 2500, 0.5)  # as attend.Attendance
    while waiting:
        waiting = [guest for guest in waiting if guest.state().phase == "waiting"]
        if waiting:
            time.sleep(pause_s)
            for guest in waiting:
                guest.beat()
    done.put(time.monotonic())


def meet_at_barrier(ranks: range, nnodes: int, port: int, start: Barrier, done: Any) -> None:
    """The peer: add, and wait for the last."""
    stores: list[Any] = [open_store("127.0.0.1", port, hosting=False) for _ in ranks]
    start.wait()
    for store in stores:
        if store.add("count", 1) == nnodes:
            store.set("all", "1")
    for store in stores:
        store.wait(["all"], timedelta(seconds=60))
    done.put(time.monotonic())


def hold_roll_call(store: Store, nnodes: int) -> None:
    """Node 0: its own guest arrives with the others."""
    me = fingerprint(0, nnodes)
    host = Host(store, me, timeout_s=60, node_timeout_s=12, say=lambda _level, _text: None)
    guest = Guest(store, me)
    guest.arrive()
    while host.step().phase == "waiting":
        time.sleep(0.05)  # as hosting.Hosting
        guest.beat()
    assert host.state.phase == "running", host.state


def hold_barrier(store: Any, nnodes: int) -> None:
    """The peer's node 0."""
    if store.add("count", 1) == nnodes:
        store.set("all", "1")
    store.wait(["all"], timedelta(seconds=60))


def seconds(nnodes: int, hold: Any, take_part: Any) -> float:
    """Run one meeting and return how long it took."""
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    store = open_store("127.0.0.1", port, hosting=True)
    store.set(HOST, "0")  # the meeting has begun before the guests come
    shares = [range(1 + index, nnodes, PROCESSES) for index in range(min(PROCESSES, nnodes - 1))]
    start, done = context.Barrier(len(shares) + 1), context.Queue()
    workers = [context.Process(target=take_part, args=(s, nnodes, port, start, done)) for s in shares]
    for worker in workers:
        worker.start()
    start.wait()
    began = time.monotonic()
    hold(store, nnodes)
    ended = max([time.monotonic(), *(done.get(timeout=60) for _ in workers)])
    for worker in workers:
        worker.join()
    return ended - began


def main() -> int:
    """Print one line a size, and whether the biggest meeting was in time and no worse than linear."""
    os.environ.update(ENVIRONMENT)  # as every meeting process
    sizes = [int(size) for size in sys.argv[1:]] or [2, 16, 128, 1024]
    ours = {}
    for nnodes in sizes:
        ours[nnodes] = seconds(nnodes, hold_roll_call, attend)
        peer = seconds(nnodes, hold_barrier, meet_at_barrier)
        print(f"{nnodes:5} nodes: roll call {ours[nnodes]:.2f} s, bare barrier {peer:.2f} s", flush=True)
    first, last = sizes[0], sizes[-1]
    growth = ours[last] / ours[first]
    print(f"{last} nodes in {ours[last]:.2f} s (goal {GOAL_S:g} s)")
    print(f"{last // first} times the nodes take {growth:.1f} times as long (goal: no more than linear)")
    return 0 if ours[last] <= GOAL_S and growth <= last / first else 1


if __name__ == "__main__":
    sys.exit(main())
