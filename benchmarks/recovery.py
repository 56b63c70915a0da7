"""How long a job stands still when a node is lost: with a spare, beside ``torchrun`` and ``ft_launcher``.

    python benchmarks/recovery.py [--rounds 3] [--fault kill|stop] [--peer floor --peer launcher …]

Three nodes on the loopback, real processes that train with gloo: two and a spare under this launcher
(``--spares 1``, all else as by default), and three under ``torchrun --nnodes 2:3 --max-restarts 3``, which
goes on with two, and the same under NVIDIA's ``ft_launcher``, if ``nvidia-resiliency-ext`` is installed:
0.4.1 is what pip installs here, 0.6 has another rendezvous. The training resumes from its last step. Once
ten steps are done, every process of node 1 is killed (or stopped, which closes no connection); the time is
from there to the first step of the next start.

The floor is what the machine needs: a plain torchrun on two nodes that are told at once, and start again at
once. Goals: at most 1.8 of the floor, and 0.7 of the faster peer. All of a round run one after the other, so
that they see the same load, which is printed. Needs the ``dev`` extra.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
GOAL_RATIO, GOAL_OF_FLOOR = 0.7, 1.8
LIMIT_S = 180.0
STEPS_BEFORE = 10
# A start is told by its process: launchers count restarts in different ways. Of torchrun's ranks, which it
# draws, any may be on any node, so that each node's first process reports.
TRAINING = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
checkpoint = Path(sys.argv[1])
dist.init_process_group("gloo")
step = torch.tensor([int(checkpoint.read_text()) if checkpoint.exists() else 0])
dist.broadcast(step, 0)
while True:
    step += 1
    dist.all_reduce(torch.ones(1000))
    if dist.get_rank() == 0:
        checkpoint.write_text(str(step.item()))
    print(f"Step {step.item()} of process {os.getpid()}", flush=True)
    time.sleep(0.2)
"""
# At a line's start: node 0 also quotes the last lines of the node that is lost.
_STEP = re.compile(r"^(?:\[node \d+\] )?Step (\d+) of process (\d+)$", re.MULTILINE)


def recovery_s(peer: str, fault: str, folder: Path) -> float:
    """Return the seconds from the loss of a node to the first step after it; infinity after LIMIT_S."""
    script = folder / "train.py"
    script.write_text(TRAINING)
    logs = [folder / f"node{rank}.txt" for rank in range(3)]
    ports = _free_ports()
    ranks = range(2 if peer == "floor" else 3)
    nodes = [_start(peer, rank, script, ports, logs[rank]) for rank in ranks]
    number = signal.SIGKILL if fault == "kill" else signal.SIGSTOP
    try:
        deadline = time.monotonic() + LIMIT_S
        while _steps(logs[0]) < STEPS_BEFORE or _steps(logs[1]) < STEPS_BEFORE:
            if time.monotonic() >= deadline:
                raise SystemExit(f"{peer} never began; node 0 said:\n{logs[0].read_text()[-2000:]}")
            time.sleep(0.05)
        before = _processes(logs[0])
        for process in _family(nodes[1].pid):
            process.send_signal(number)
        lost = time.monotonic()
        if peer == "floor":
            for process in _family(nodes[0].pid):
                process.kill()
            ports = _free_ports()
            nodes += [_start(peer, rank, script, ports, logs[rank]) for rank in ranks]
        while time.monotonic() - lost < LIMIT_S:
            if _processes(logs[0]) - before:
                return time.monotonic() - lost
            time.sleep(0.05)
        return float("inf")
    finally:
        for node in nodes:
            for process in _family(node.pid):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            node.wait()


def _start(peer: str, rank: int, script: Path, ports: tuple[int, int], log: Path) -> subprocess.Popen[bytes]:
    checkpoint = script.with_name("step")
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if peer == "launcher":
        command = [
            *(sys.executable, str(ROOT / "platform_launch" / "__main__.py"), "run", "--no-doctor"),
            *("--launcher", "torchrun", "--nproc-per-node", "1", "--script", str(script)),
            *("--spares", "1", "--max-restarts", "3", "--log-dir", str(script.parent / "logs")),
            *("--", str(checkpoint)),
        ]
        variables |= {
            "WORLD_SIZE": "3",
            "RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(ports[0]),
            "INIT_MASTER_PORT": str(ports[1]),
        }
    elif peer == "floor":
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(rank)),
            *("--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(ports[0])),
            *(str(script), str(checkpoint)),
        ]
    else:
        elastic = ["torch.distributed.run"]
        if peer == "ft_launcher":  # torchrun's options and some of its own
            elastic = ["nvidia_resiliency_ext.fault_tolerance.launcher", "--ignore-missing-fault-tol-cfg"]
        command = [
            *(sys.executable, "-m", *elastic, "--nnodes", "2:3", "--nproc-per-node", "1"),
            *("--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-id", "recovery"),
            *("--rdzv-endpoint", f"127.0.0.1:{ports[0]}", "--local-addr", "127.0.0.1"),
            *("--rdzv-conf", f"is_host={int(rank == 0)}", str(script), str(checkpoint)),
        ]
    with log.open("ab") as output:
        return subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )


def _steps(log: Path) -> int:
    return max((int(step) for step, _ in _STEP.findall(log.read_text(errors="replace"))), default=0)


def _processes(log: Path) -> set[str]:
    return {process for _, process in _STEP.findall(log.read_text(errors="replace"))}


def _family(pid: int) -> Sequence[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    return []


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


def main() -> int:
    """Print each time and load, the medians and their ratios; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fault", choices=["kill", "stop"], default="kill")
    known = [
        "floor",
        "launcher",
        "torchrun",
        *(["ft_launcher"] if find_spec("nvidia_resiliency_ext") else []),
    ]
    parser.add_argument("--peer", action="append", choices=known, help="repeatable; default: all")
    chosen = parser.parse_args()
    times: dict[str, list[float]] = {peer: [] for peer in chosen.peer or known}
    for _ in range(chosen.rounds):
        for peer, found in times.items():
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                found.append(recovery_s(peer, chosen.fault, Path(folder)))
            print(f"{chosen.fault:5} {peer:11} {found[-1]:6.1f} s, load {os.getloadavg()[0]:.1f}", flush=True)
    ours, floor = times.pop("launcher", None), times.pop("floor", None)
    missed = False
    if ours and floor:
        ratios = [mine / least for mine, least in zip(ours, floor, strict=True)]
        print(f"paired with the floor: {statistics.median(ratios):.2f} (goal {GOAL_OF_FLOOR})")
        missed |= statistics.median(ratios) > GOAL_OF_FLOOR
    if ours and times:
        peer, theirs = min(
            ((peer, statistics.median(found)) for peer, found in times.items()), key=lambda each: each[1]
        )
        ratio = statistics.median(ours) / theirs
        print(f"beside {peer}, {theirs:.1f} s: {ratio:.2f} (goal {GOAL_RATIO})")
        missed |= ratio > GOAL_RATIO
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
