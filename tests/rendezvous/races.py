"""Jobs whose nodes die, stop, continue and are late at random: ``races.py JOBS FIRST_SEED [hosts] [fewer]``.

Launchers on the loopback as processes of their own, without training processes (``launchers``). With
``hosts`` each node has a host of its own and knows those of the others: its cable may be pulled as well, and
all this may happen to node 0. With ``fewer`` a job has one spare and may continue with one node less. Prints
a line of JSON for each job: its seed, what was done to it, and what was wrong, if anything.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from platform_launch.rendezvous.ending import EndKind, NodeEnding
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.messages import ConsoleLine
from platform_launch.rendezvous.run.hosts import RendezvousHosts
from platform_launch.rendezvous.run.state import StopAll, TrainingEnded
from platform_launch.rendezvous.run.task import (
    AllJoined,
    Moved,
    RendezvousLost,
    RunEnded,
    RunNews,
    RunTask,
    Standby,
)
from platform_launch.rendezvous.verdict import RunRefusal
from tests.lab.netns import Host, hosts
from tests.rendezvous import launchers

# Nodes, spares, and how many nodes a restart needs.
NNODES, SPARES, LEAST = (4, 1, 3) if "fewer" in sys.argv else (3, 2, 3)
PLACES = (0, *range(NNODES, NNODES + SPARES), *range(NNODES - 1, LEAST - 1, -1))
NODE_TIMEOUT_S = 5.0
LIMIT_S = float(os.environ.get("RACES_LIMIT_S", "240"))


@dataclass
class Node:
    """A node: ``held`` is the rank it trains with, None while it does not; ``dead`` is for good.

    ``cut``: its cable is pulled. ``away``: it is or was, and the node has not heard what came since.
    """

    me: Fingerprint
    pid: int = 0
    to: int = -1
    held: int | None = None
    waits: bool = False
    stopped: bool = False
    cut: bool = False
    away: bool = False
    spare: bool = False
    lost: bool = False
    master: str = ""
    dead: bool = False
    ended: RunNews | None = None
    again_at: float | None = None
    replaced: tuple[int, ...] = ()
    trained: int = NNODES
    said: list[str] = field(default_factory=list)


class WrongError(Exception):
    """Something that must not happen."""


class Job:
    """One job: its nodes' launchers, and the faults that are injected into them."""

    def __init__(self, seed: int, machines: tuple[Host, ...] = ()) -> None:
        self._random = random.Random(seed)
        # Below those that the system gives away, and of this process alone: jobs run side by side.
        first = 12000 + os.getpid() % 6000 * 3
        self._ports = first, first + 1, first + 2
        self._selector = selectors.DefaultSelector()
        self._began = time.monotonic()
        self._deadline = self._began + LIMIT_S
        self._restarts = 0
        self._machines = machines
        self._places = tuple(machines[rank].address for rank in PLACES) if machines else ()
        master = self._places[0] if machines else "127.0.0.1"
        self.nodes = [
            Node(_fingerprint(rank, seed), spare=rank >= NNODES, master=master)
            for rank in range(NNODES + SPARES)
        ]
        self.done: list[str] = []

    def run(self) -> None:
        """Start, inject several faults, and end cleanly. Raises WrongError."""
        for node in self.nodes:
            node.again_at = time.monotonic() + self._jitter_s()
        self._until(self._trains)
        for _ in range(self._random.randint(1, 3)):
            self._restarts = 1 + max(node.me.restarts_used for node in self._training())
            self._do_something()
            self._until(self._trains)
            self._wake_all()
            if not self._trains():  # this machine is so busy that a node was missed
                self._note("once more")
                self._until(self._trains)
        self._note("finish")
        for node in self._training():
            self._end(node, EndKind.FINISHED)
        self._until(lambda: all(node.dead or node.ended is not None for node in self.nodes))
        for node in self.nodes:
            if not node.dead and not (isinstance(node.ended, RunEnded) and node.ended.outcome.exit_code == 0):
                raise WrongError(f"node {node.me.host} ended with {node.ended}: {node.said}")

    def _note(self, text: str) -> None:
        self.done.append(f"{time.monotonic() - self._began:.1f} s: {text}")

    def close(self) -> None:
        """Leave no process behind."""
        for node in self.nodes:
            if node.pid:
                with suppress(ProcessLookupError):
                    os.kill(node.pid, signal.SIGKILL)
                os.waitpid(node.pid, 0)

    def _do_something(self) -> None:
        living = sum(not node.dead for node in self.nodes)
        # Without a list of hosts all meet at node 0, come what may.
        victims = [node for node in self.nodes if not node.dead and (self._machines or node != self.nodes[0])]
        kinds = (["cut"] * 2 + ["part"] * 2 * (living == NNODES + SPARES)) * bool(self._machines)
        kinds += ["fail", "stop"] + ["kill"] * 2 * (living > LEAST) + ["kill two"] * (living > LEAST + 1)
        kind = self._random.choice(kinds)
        chosen = self._random.sample(victims, 2 if kind in ("kill two", "part") else 1)
        leader = next(node for node in self._training() if node.held == 0)
        if self._machines and leader not in chosen and self._random.random() < 0.4:
            chosen[0] = leader
        self._note(f"{kind} {' and '.join(node.me.host for node in chosen)}")
        if kind == "fail":
            node = self._random.choice(self._training())
            self._send(node, StopAll(self._ending(node, EndKind.FAILED)))
            self._end(node, EndKind.FAILED)
            return
        if kind in ("stop", "cut") and living == LEAST:
            chosen = []  # the others would wait for it, as they should
        train = any(node.held is not None for node in chosen)
        for node in chosen:
            if kind in ("cut", "part"):
                node.cut = node.away = True
                machine = self._machines[self.nodes.index(node)]
                machine.cut() if kind == "cut" else machine.part()
                continue
            os.kill(node.pid, signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
            node.stopped, node.dead = kind == "stop", kind != "stop"
        if not train:  # spares: nobody misses them
            node = self._random.choice([node for node in self._training() if node not in chosen])
            self._send(node, StopAll(self._ending(node, EndKind.FAILED)))
            self._end(node, EndKind.FAILED)
        else:
            for node in chosen:
                node.held = node.held if node.away else None

    def _wake_all(self) -> None:
        for node in self.nodes:
            if node.cut:
                node.cut = False
                self._machines[self.nodes.index(node)].heal()
                self._note(f"heal {node.me.host}")
        self._until(lambda: not any(node.away and not node.dead for node in self.nodes))
        for node in self.nodes:
            if node.stopped and not node.dead:
                os.kill(node.pid, signal.SIGCONT)
                node.stopped = False
                self._note(f"wake {node.me.host}")
                # What it had is another's: it is a spare, or it comes too late for this start.
                self._until(lambda node=node: node.waits)  # type: ignore[misc]

    def _training(self) -> list[Node]:
        return [node for node in self.nodes if node.held is not None and not (node.dead or node.away)]

    def _trains(self) -> bool:
        """Whether the expected number of nodes train with distinct ranks, and the others wait."""
        ranks = sorted(node.held for node in self._training() if node.held is not None)
        if len(ranks) != len(set(ranks)):
            raise WrongError(f"a rank was given twice: {ranks}")
        if len({node.master for node in self._training()}) > 1 and ranks == list(range(NNODES)):
            raise WrongError(f"two trainings: {[(n.me.host, n.master, n.held) for n in self._training()]}")
        others = [n for n in self.nodes if not (n.dead or n.stopped or n.away) and n.held is None]
        again = all(node.me.restarts_used >= self._restarts for node in self._training())
        enough = len(ranks) >= LEAST and ranks == list(range(len(ranks)))
        return again and enough and all(node.waits for node in others)

    def _until(self, true: Callable[[], bool]) -> None:
        while not true():
            now = time.monotonic()
            if now >= self._deadline:
                states = [(n.me.host, n.held, n.waits, n.dead, n.stopped, n.said[-2:]) for n in self.nodes]
                raise WrongError(f"nothing moves: {states}")
            for node in self.nodes:
                if node.again_at is not None and now >= node.again_at and not node.dead and not node.stopped:
                    node.again_at = None
                    self._start_launcher(node)
            for key, _ in self._selector.select(0.02):
                messages: BinaryIO = key.fileobj  # type: ignore[assignment]
                line = messages.readline()
                if line:
                    self._hear(key.data, launchers.unpacked(line))
                else:
                    self._selector.unregister(messages)
                    messages.close()

    def _hear(self, node: Node, message: RunNews | None) -> None:
        if isinstance(message, ConsoleLine):
            node.said.append(message.text)
        elif isinstance(message, Standby):
            node.waits, node.away = True, node.cut
        elif isinstance(message, AllJoined):
            node.waits, node.held, node.away = False, message.node_rank, node.cut
            node.spare, node.master, node.trained = False, message.host, message.nnodes
            if message.node_rank != node.me.node_rank:
                node.me = replace(node.me, node_rank=message.node_rank, stand_in=True)
            node.me = replace(node.me, restarts_used=message.restarts_used)
        elif isinstance(message, StopAll) and node.held is not None:
            self._end(node, EndKind.STOPPED)
        elif isinstance(message, Moved):
            node.spare = node.spare or node.me.node_rank == 0
            node.waits, node.master, node.lost = False, message.host, True
            restarts = max(node.me.restarts_used, message.restarts_used)
            node.me = replace(node.me, restarts_used=restarts)
            node.again_at = time.monotonic() + self._jitter_s()
        elif isinstance(message, (RunEnded, RendezvousLost)):
            self._settle(node, message)
        elif isinstance(message, RunRefusal):
            raise WrongError(f"{node.me.host} was sent away: {message.reason}; {node.said}")

    def _settle(self, node: Node, message: RunEnded | RendezvousLost) -> None:
        again = isinstance(message, RendezvousLost) or message.outcome.restart
        node.held, node.waits = None, False
        if not again:
            node.ended = message
            return
        node.lost = isinstance(message, RendezvousLost) or 0 in message.outcome.replaced
        node.replaced = message.outcome.replaced if isinstance(message, RunEnded) else ()
        node.me = replace(node.me, restarts_used=node.me.restarts_used + 1)
        node.again_at = time.monotonic() + self._jitter_s()

    def _end(self, node: Node, kind: EndKind) -> None:
        self._send(node, TrainingEnded(self._ending(node, kind), None))

    def _ending(self, node: Node, kind: EndKind) -> NodeEnding:
        return NodeEnding(kind, node.me.node_rank, node.me.place, 0 if kind is EndKind.FINISHED else 1)

    def _jitter_s(self) -> float:
        """How long a launcher takes to start: most are quick, some are late by seconds."""
        return self._random.random() * (3.0 if self._random.random() < 0.2 else 0.3)

    def _send(self, node: Node, message: RunTask | StopAll | TrainingEnded) -> None:
        with suppress(OSError):
            os.write(node.to, launchers.packed(message))

    def _start_launcher(self, node: Node) -> None:
        if node.pid:
            os.close(node.to)
            os.waitpid(node.pid, 0)
        its_stdin, node.to = os.pipe()
        from_it, its_stdout = os.pipe()
        others = [other.to for other in self.nodes if other.to >= 0]
        index = self.nodes.index(node)
        with self._machines[index].entered() if self._machines else nullcontext():
            node.pid = os.fork()
            if node.pid == 0:
                os.dup2(its_stdin, 0)
                os.dup2(its_stdout, 1)
                for descriptor in (*others, its_stdin, its_stdout, from_it):
                    with suppress(OSError):
                        os.close(descriptor)
                launchers.main()
        os.close(its_stdin)
        os.close(its_stdout)
        self._selector.register(os.fdopen(from_it, "rb", buffering=0), selectors.EVENT_READ, node)
        task = RunTask(
            node=node.me,
            master_addr=node.master,
            master_port=self._ports[0],
            ports=self._ports[1:],
            roll_call_timeout_s=LIMIT_S,
            node_timeout_s=NODE_TIMEOUT_S,
            grace_s=1.0,
            spares=SPARES,
            spare=node.spare,
            max_restarts=99,
            replaced=node.replaced,
            min_nodes=LEAST,
            trained=node.trained,
            rendezvous_hosts=self._places_of(index),
            lost=node.lost,
        )
        self._send(node, task)

    def _places_of(self, index: int) -> RendezvousHosts:
        own = PLACES.index(index) if index in PLACES else None
        return RendezvousHosts(self._places, own) if self._places else RendezvousHosts()


def _fingerprint(rank: int, seed: int) -> Fingerprint:
    return Fingerprint(rank, NNODES, f"machine{rank}", ("127.0.0.1",), f"{seed}-{rank}", None)


def _try(seed: int, *, apart: bool) -> int:
    with hosts(NNODES + SPARES) if apart else nullcontext(()) as machines:
        return _play(seed, machines)


def _play(seed: int, machines: tuple[Host, ...]) -> int:
    job = Job(seed, machines)
    wrong = ""
    try:
        job.run()
    except WrongError as error:
        wrong = str(error)
    except Exception:
        wrong = traceback.format_exc()
    finally:
        job.close()
    print(json.dumps({"seed": seed, "done": job.done, "wrong": wrong}), flush=True)
    return 1 if wrong else 0


def main(jobs: int, first_seed: int, *, apart: bool) -> int:
    """Run the jobs concurrently; return how many failed."""
    children = []
    for seed in range(first_seed, first_seed + jobs):
        child = os.fork()
        if child == 0:
            os._exit(_try(seed, apart=apart))
        children.append(child)
    return sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3]), apart="hosts" in sys.argv[3:]))
