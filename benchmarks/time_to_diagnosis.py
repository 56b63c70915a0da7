"""Seconds until the user is told the cause, on broken clusters, beside bare ``accelerate launch``.

    python benchmarks/time_to_diagnosis.py [--cap 120] [CASE...]

Every cluster is two or three hosts (network namespaces) with real accelerate and torch over gloo; both
sides get the same command line for ``accelerate launch``, the one this project would run there. The clock
starts when the cause can be known: when the last node that comes has been started, or when something breaks
during training. It stops at the first line of node 0 (or the lowest node that runs) which names the cause by
the case's pattern; the peer's pattern is lenient. Needs root, iproute2 and the ``dev`` extra.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

try:
    from tests.lab.netns import Host, hosts, why_no_hosts
except ModuleNotFoundError as error:
    sys.exit(f"skipped: needs {error.name} (the dev extra) for hosts made of network namespaces")

GOAL_S, GOAL_RATIO = 15.0, 0.1
# Both train on a collective every tenth of a second, as trainings do.
SCRIPT = """
import sys, time
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(minutes=10))
print("training", flush=True)
number = torch.ones(1)
for step in range(6000):
    if dist.get_rank() == 1 and step == 20 and "raise" in sys.argv:
        raise ValueError("the data is wrong")
    dist.all_reduce(number)
    time.sleep(0.1)
"""


@dataclass(frozen=True)
class Case:
    """A broken cluster. ``ranks`` gives each host its node rank, None for one that never comes.

    ``damage`` is done when training runs; ``ours`` and ``peer`` are the patterns of the cause.
    """

    name: str
    ranks: tuple[int | None, ...]
    nnodes: int
    ours: str
    peer: str
    damage: Callable[[Sequence[Host]], None] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    options: dict[int, tuple[str, ...]] = field(default_factory=dict)
    script_arguments: tuple[str, ...] = ()
    taken_port: bool = False


def cut(machines: Sequence[Host]) -> None:
    """Pull node 1's cable."""
    machines[1].cut()


def kill(machines: Sequence[Host]) -> None:
    """Kill everything on node 1, then its cable: a power cut sends no goodbye."""
    machines[1].cut()
    pids = subprocess.run(
        ["ip", "netns", "pids", machines[1].namespace], capture_output=True, text=True, check=True
    )
    for pid in pids.stdout.split():
        os.kill(int(pid), signal.SIGKILL)


CASES = (
    Case("a node never comes", (0, 1, None), 3, r"absent: node 2", r"absent|node2|clients joined"),
    Case("node 0 never comes", (None, 1), 2, r"node0:29501 .*(refuses|answer)", r"refused|node0.*(wait|tim)"),
    Case(
        "the master's name does not resolve",
        (None, 1),
        2,
        r"'gpu-0\.job' (does not resolve|is \[rendezvous-waiting\])",
        r"gai error|Name or service not known|not resolve",
        environment={"MASTER_ADDR": "gpu-0.job"},
    ),
    Case("MASTER_PORT is taken", (0, 1), 2, r"held by pid \d+", r"in use|another process", taken_port=True),
    Case("two nodes have one rank", (0, 1, 1), 3, r"two nodes have rank 1", r"(same|duplicate).*rank"),
    Case(
        "a node has fewer processes (a lost GPU)",
        (0, 1),
        2,
        r"processes per node: 2 on node 0; 1 on node 1",
        r"node1|10\.213\.0\.2|world.size.*(differ|mismatch)",
        options={0: ("--nproc-per-node", "2"), 1: ("--nproc-per-node", "1")},
    ),
    Case(
        "a cable is pulled during training",
        (0, 1),
        2,
        r"node 1 .*\[node-silent\]",
        r"closed by peer|reset|timed out",
        cut,
    ),
    Case(
        "a node loses power during training",
        (0, 1),
        2,
        r"node 1 .*\[node-silent\]",
        r"closed by peer|reset|timed out",
        kill,
    ),
    Case(
        "the script raises on one node",
        (0, 1),
        2,
        r"the data is wrong",
        r"the data is wrong",
        script_arguments=("raise",),
    ),
)


class Watched:
    """A node whose lines are watched for a pattern. ``told_at`` is set when it is seen."""

    def __init__(self, process: subprocess.Popen[str], pattern: str) -> None:
        self.process = process
        self.told_at: float | None = None
        self.trains = threading.Event()
        self._pattern = re.compile(pattern, re.IGNORECASE)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if re.search(r"(^|\] )training$", line):
                self.trains.set()
            if self.told_at is None and self._pattern.search(line):
                self.told_at = time.monotonic()


def measure(case: Case, cap_s: float, *, bare: bool) -> float | None:
    """Build the cluster, run one side on it, and return the seconds, None for more than the cap."""
    with tempfile.TemporaryDirectory() as folder, hosts(len(case.ranks)) as machines:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        holder = _hold_port(machines[0]) if case.taken_port else None
        nodes = [
            _start(machine, rank, case, script, bare=bare)
            for machine, rank in zip(machines, case.ranks, strict=True)
            if rank is not None
        ]
        known_at = time.monotonic()
        if case.damage is not None or case.script_arguments:
            assert nodes[0].trains.wait(90), f"{case.name}: the training never began"
            known_at = time.monotonic()
            if case.damage is not None:
                case.damage(machines)
        while nodes[0].told_at is None and time.monotonic() - known_at < cap_s:
            time.sleep(0.05)
        for process in (*(node.process for node in nodes), *([holder] if holder else [])):
            process.kill()
            process.wait()
        return None if nodes[0].told_at is None else nodes[0].told_at - known_at


def _hold_port(host: Host) -> subprocess.Popen[str]:
    code = "import socket, time; s = socket.create_server(('', 29500)); print('held'); time.sleep(600)"
    holder = host.popen([sys.executable, "-u", "-c", code])
    assert holder.stdout is not None
    holder.stdout.readline()
    return holder


def _start(host: Host, rank: int, case: Case, script: Path, *, bare: bool) -> Watched:
    variables = {
        "WORLD_SIZE": str(case.nnodes),
        "RANK": str(rank),
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29500",
        "OMP_NUM_THREADS": "1",
        **case.environment,
    }
    run = [
        *(sys.executable, str(ROOT / "platform_launch" / "__main__.py"), "run", "--script", str(script)),
        *("--log-dir", str(script.parent / f"logs{rank}"), "--no-doctor", *case.options.get(rank, ())),
    ]
    if not bare:
        return Watched(host.popen([*run, "--", *case.script_arguments], env=variables), case.ours)
    rehearsal = [*run, "--print-env", "--format", "json", "--", *case.script_arguments]
    plan = json.loads(host.run(rehearsal, env=variables).stdout)
    variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "DS_ACCELERATOR": "cpu"}
    return Watched(host.popen(plan["argv"], env=variables), case.peer)


def main() -> int:
    """Print one line a case and the sum, and tell whether both goals are met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cap", type=float, default=120.0, help="seconds after which the peer is stopped")
    parser.add_argument("cases", nargs="*", help="only cases whose name holds one of these words")
    flags = parser.parse_args()
    if reason := why_no_hosts():
        sys.exit(f"skipped: {reason}")
    chosen = [c for c in CASES if not flags.cases or any(word in c.name for word in flags.cases)]
    ours = [measure(case, flags.cap, bare=False) for case in chosen]
    with ThreadPoolExecutor(2) as pool:  # they mostly wait
        peers = list(pool.map(lambda case: measure(case, flags.cap, bare=True), chosen))
    for case, mine, theirs in zip(chosen, ours, peers, strict=True):
        print(f"{case.name:42} {_shown(mine, flags.cap):>8} {_shown(theirs, flags.cap):>8}")
    total, peer_total = (sum(flags.cap if s is None else s for s in column) for column in (ours, peers))
    ratio = total / peer_total
    print(f"all cases: ours ÷ peer = {total:.1f} s ÷ {peer_total:.1f} s = {ratio:.3f} (goal {GOAL_RATIO})")
    in_time = all(mine is not None and mine <= GOAL_S for mine in ours)
    print(f"every case told within {GOAL_S:g} s: {'yes' if in_time else 'no'}")
    return 0 if in_time and ratio <= GOAL_RATIO else 1


def _shown(seconds: float | None, cap_s: float) -> str:
    return f"> {cap_s:g} s" if seconds is None else f"{seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
