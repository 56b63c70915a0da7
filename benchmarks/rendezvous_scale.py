"""How N nodes meet, stay in touch and end, and what that costs node 0.

    python benchmarks/rendezvous_scale.py [NODES...]        (default 16 128 512 1024)

Everything is real except the number of machines: each node runs what a launcher runs (``Participation``),
from the first try to reach node 0 to the outcome, with its own connection and fingerprint. Node 0 has its own
process; the others share four, whose work would be spread over N machines.

- met: from the start signal, when nobody is connected, until the last of them knows that all are there
- node 0: how much of a processor node 0 uses while the job runs, and its resident memory
- end: from the end of all nodes' processes until the last node knows the outcome

The peer is the barrier that a script can have with torch alone, over torch's store: connect, ``store.add`` by
everyone, ``store.wait`` for the last. It compares nothing, names nobody, and notices nothing afterwards.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import Semaphore
from typing import Any

from platform_launch.hardware import ports
from platform_launch.rendezvous.ending import EndKind, NodeEnding
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.run.participation import Participation
from platform_launch.rendezvous.run.state import TrainingEnded
from platform_launch.rendezvous.run.task import AllJoined, OwnProcesses, RunEnded, RunNews, RunTask

SHARED = 4
IN_TOUCH_S = 10.0
LIMIT_S = 600.0
MIB = 2**20


@dataclass(frozen=True)
class Moment:
    """How far the nodes of a process have come, and what the process has used by then."""

    at_s: float
    cpu_s: float
    memory_mib: float

    @classmethod
    def now(cls) -> Moment:
        """Return what has been used so far."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(time.monotonic(), time.process_time(), pages * os.sysconf("SC_PAGE_SIZE") / MIB)


def fingerprint(rank: int, nnodes: int) -> Fingerprint:
    """A node with as many facts as a real one has; every seventh has another driver."""
    facts = {f"fact {number}": "a value of usual length" for number in range(40)}
    facts["GPU driver"] = "570.86.15" if rank % 7 else "535.54.03"
    host, address = f"gpu-{rank:04}", f"10.0.{rank // 256}.{rank % 256}"
    return Fingerprint(rank, nnodes, host, (address,), os.urandom(16).hex(), "job", 8, facts)


def take_part(ranks: range, nnodes: int, known: tuple[int, int], step: Barrier, done: Any) -> None:
    """Be some of the nodes, and report the moments when all of these had begun, met, run and ended."""
    met, settled = Semaphore(0), Semaphore(0)

    def receive(news: RunNews | None) -> None:
        if isinstance(news, (AllJoined, RunEnded)):
            (met if isinstance(news, AllJoined) else settled).release()

    tasks = [
        RunTask(fingerprint(rank, nnodes), "127.0.0.1", known[0], known[1:], LIMIT_S, 60.0, 5.0)
        for rank in ranks
    ]
    nodes = [Participation(task, OwnProcesses(), receive) for task in tasks]
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
    for rank, node in zip(ranks, nodes, strict=True):
        node.send(TrainingEnded(NodeEnding(EndKind.FINISHED, rank, "", 0), None))
    for _ in nodes:
        settled.acquire()
    moments.append(Moment.now())
    done.put((ranks.start, moments))
    for node in nodes:
        node.close()


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


def main() -> None:
    """Print a line per size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nodes", nargs="*", type=int, default=[16, 128, 512, 1024])
    print("nodes   met    (peer)     ratio   node 0: processor, memory      end")
    for nnodes in parser.parse_args().nodes:
        found = run(nnodes, take_part)
        peer = run(nnodes, meet_at_barrier)
        last = [max(moments[index].at_s for moments in found.values()) for index in range(6)]
        met_s, end_s = last[1] - last[0], last[5] - last[4]
        peer_s = max(end.at_s for _, end in peer.values()) - max(begin.at_s for begin, _ in peer.values())
        before, after = found[0][2], found[0][3]
        cpu = (after.cpu_s - before.cpu_s) / IN_TOUCH_S
        print(
            f"{nnodes:5} {met_s:6.2f} s ({peer_s:.2f} s) {met_s / peer_s:7.1f}"
            f"{cpu:18.1%} {after.memory_mib:8.0f} MiB {end_s:8.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
