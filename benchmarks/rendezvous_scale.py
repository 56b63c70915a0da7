"""How N nodes meet, stay in touch and end, and what each of them asks of node 0's store for it.

    python benchmarks/rendezvous_scale.py [NODES...]        (default 16 128 256 512)

Everything is real but the number of machines: each node runs what the helper process of a launcher runs
(``TakingPart``), from the first try to reach node 0 to the outcome, with a connection and a fingerprint of
its own. Node 0 has a process to itself; the others share four, whose work would be spread over N machines.

- met: from the start signal, when nobody is connected, until the last of them knows that all are there
- requests and KiB: what a node asks of the store, on average, to meet; in a second of training; to end
- node 0: how much of a processor node 0 uses while the others train
- end: from the end of all trainings until the last node knows the outcome

The goal is that what a node asks does not grow with their number. The peer is the barrier that a script can
have with torch alone, over the same store: connect, ``store.add`` by everyone, ``store.wait`` for the last.
It compares nothing, names nobody, and notices nothing afterwards.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.synchronize import Barrier
from queue import Queue
from threading import Semaphore, Thread
from typing import Any

from platform_launch.hardware import ports
from platform_launch.hardware.names import without_lookups
from platform_launch.launch.link import ENVIRONMENT
from platform_launch.rendezvous import store
from platform_launch.rendezvous.ending import EndKind, NodeEnding
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.messages import Message
from platform_launch.rendezvous.run.launcher import AllHere, RunTask, Settled
from platform_launch.rendezvous.run.own_launcher import OwnLauncher
from platform_launch.rendezvous.run.state import TrainingEnded
from platform_launch.rendezvous.run.taking_part import TakingPart

SHARED = 4
IN_TOUCH_S = 10.0
LIMIT_S = 600.0
# What a node asks may vary with how long it waits for the last; it must not follow their number.
MOST_GROWTH = 2.0


class Counted:
    """A TCPStore that counts what is asked of it. Each is used by one thread."""

    everyone: list[Counted] = []  # noqa: RUF012 - of this process

    def __init__(self, real: Any) -> None:
        self._real = real
        self.requests = self.bytes = 0
        self.everyone.append(self)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return partial(self._count, found) if callable(found) else found

    def _count(self, call: Callable[..., Any], *arguments: Any) -> Any:
        answer = call(*arguments)
        self.requests += 1
        self.bytes += sum(map(_size, (*arguments, answer)))
        return answer


def _size(value: Any) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    return sum(map(_size, value)) if isinstance(value, list) else 0


@dataclass(frozen=True)
class Moment:
    """How far the nodes of a process have come."""

    at_s: float
    cpu_s: float
    requests: int
    bytes: int

    @classmethod
    def now(cls) -> Moment:
        """Return what has been used so far."""
        used = Counted.everyone
        requests, sizes = sum(one.requests for one in used), sum(one.bytes for one in used)
        return cls(time.monotonic(), time.process_time(), requests, sizes)


def fingerprint(rank: int, nnodes: int) -> Fingerprint:
    """A node with as many facts as a real one has; every seventh has another driver."""
    facts = {f"fact {number}": "a value of usual length" for number in range(40)}
    facts["GPU driver"] = "570.86.15" if rank % 7 else "535.54.03"
    host, address = f"gpu-{rank:04}", f"10.0.{rank // 256}.{rank % 256}"
    return Fingerprint(rank, nnodes, host, (address,), os.urandom(16).hex(), "job", 8, facts)


def take_part(ranks: range, nnodes: int, known: tuple[int, int], step: Barrier, done: Any) -> None:
    """Be some of the nodes, and report the moments when all of these had begun, met, trained and ended."""
    store.load_torch(bare=True)
    opening = store._opening
    store._opening = lambda *given, **named: lambda: Counted(opening(*given, **named)())  # type: ignore[assignment]
    met, settled = Semaphore(0), Semaphore(0)

    def emit(message: Message) -> None:
        if isinstance(message, (AllHere, Settled)):
            (met if isinstance(message, AllHere) else settled).release()

    commands: list[Queue[Message | None]] = [Queue() for _ in ranks]
    nodes = []
    for rank, queue in zip(ranks, commands, strict=True):
        me = fingerprint(rank, nnodes)
        task = RunTask(me, "127.0.0.1", *known, LIMIT_S, 60.0, 5.0, "")
        nodes.append(Thread(target=TakingPart(task, me, None, OwnLauncher(), queue, emit).run, daemon=True))
    step.wait()
    moments = [Moment.now()]
    for node in nodes:
        node.start()
    for _ in nodes:
        met.acquire()
    moments.append(Moment.now())
    step.wait()
    moments.append(Moment.now())
    time.sleep(IN_TOUCH_S)
    moments.append(Moment.now())
    step.wait()
    moments.append(Moment.now())
    for rank, queue in zip(ranks, commands, strict=True):
        queue.put(TrainingEnded(NodeEnding(EndKind.FINISHED, rank, "", 0), None))
    for _ in nodes:
        settled.acquire()
    moments.append(Moment.now())
    done.put((ranks.start, moments))
    for node in nodes:
        node.join()


def meet_at_barrier(ranks: range, nnodes: int, known: tuple[int, int], step: Barrier, done: Any) -> None:
    """The peer: connect, add, and wait for the last."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    limit = timedelta(seconds=LIMIT_S)
    made = partial(TCPStore, "127.0.0.1", known[1], None, timeout=limit, wait_for_workers=False)
    leading = [made(is_master=True)] if ranks.start == 0 else []
    step.wait()
    began = Moment.now()
    stores = leading or [made(is_master=False) for _ in ranks]
    for one in stores:
        if one.add("count", 1) == nnodes:
            one.set("all", "1")
    for one in stores:
        one.wait(["all"], limit)
    done.put((ranks.start, [began, Moment.now()]))
    step.wait()


def run(nnodes: int, part: Callable[..., None]) -> dict[int, list[Moment]]:
    """Run one job; return the moments of each process by its first rank."""
    context = multiprocessing.get_context("spawn")
    shares = [range(1), *(range(1 + index, nnodes, SHARED) for index in range(min(SHARED, nnodes - 1)))]
    known = ports.free(), ports.free()
    step, done = context.Barrier(len(shares)), context.Queue()
    workers = [context.Process(target=part, args=(one, nnodes, known, step, done)) for one in shares]
    for worker in workers:
        worker.start()
    found = dict(done.get(timeout=LIMIT_S) for _ in workers)
    for worker in workers:
        worker.join()
    return found


def main() -> int:
    """Print a line a size, and whether what a node asks grows with their number."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nodes", nargs="*", type=int, default=[16, 128, 256, 512])
    sizes = parser.parse_args().nodes
    os.environ.update(without_lookups({**os.environ, **ENVIRONMENT}))  # as every helper; the peer has it too
    asked = {}
    print("nodes    met (peer)   requests, KiB a node: to meet    in a second     to end    node 0      end")
    for nnodes in sizes:
        found = run(nnodes, take_part)
        peer = run(nnodes, meet_at_barrier)
        last = [max(moments[index].at_s for moments in found.values()) for index in range(6)]
        met_s, end_s = last[1] - last[0], last[5] - last[4]
        peer_s = max(end.at_s for _, end in peer.values()) - max(begin.at_s for begin, _ in peer.values())
        guests = [moments for first, moments in found.items() if first]

        def each(
            begin: int, end: int, over: float = 1.0, guests: list[list[Moment]] = guests, nnodes: int = nnodes
        ) -> tuple[float, float]:
            requests = sum(one[end].requests - one[begin].requests for one in guests)
            size = sum(one[end].bytes - one[begin].bytes for one in guests)
            return requests / (nnodes - 1) / over, size / (nnodes - 1) / over / 1024

        asked[nnodes] = meet, train, close = each(0, 1), each(2, 3, IN_TOUCH_S), each(4, 5)
        cpu = (found[0][3].cpu_s - found[0][2].cpu_s) / IN_TOUCH_S
        print(
            f"{nnodes:5} {met_s:6.2f} s ({peer_s:.2f})"
            f"{meet[0]:27.1f} {meet[1]:5.1f} {train[0]:8.1f} {train[1]:5.1f} {close[0]:6.1f} {close[1]:5.1f}"
            f"{cpu:9.1%} {end_s:6.2f} s",
            flush=True,
        )
    first, latest = asked[sizes[0]], asked[sizes[-1]]
    growth = sum(size for _, size in latest) / sum(size for _, size in first)
    times = sizes[-1] // sizes[0]
    print(f"{times} times the nodes: each asks for {growth:.1f} times the bytes (goal: {MOST_GROWTH:g})")
    return 0 if growth <= MOST_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
