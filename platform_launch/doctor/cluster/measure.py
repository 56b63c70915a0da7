"""One node's share of a group's collective: worker processes that are given a limit of time."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from platform_launch.doctor.cluster.board import Board
from platform_launch.doctor.cluster.document import Seat, Task
from platform_launch.doctor.cluster.pairing import Group
from platform_launch.environment import Environment
from platform_launch.supervise import Answer, Command, capture

_PROBE = Path(__file__).parents[1] / "probes" / "collective.py"
_TIMED_OUT = 124


def take_part(
    board: Board, task: Task, number: int, group: Group, seats: Mapping[int, Seat]
) -> dict[str, Any]:
    """Run this node's workers of round ``number`` and return what they say, in the form of a result."""
    me = group.index(task.node_rank)
    order: dict[str, object] = {
        "limit_s": task.collective_limit_s,
        "processes": len(group) * task.workers,
        "backend": task.backend,
    }
    if task.backend == "jax":
        order["coordinator"] = _coordinator(board, task, number, group, seats)
    else:
        order |= {"host": task.master_addr, "port": task.meeting_port, "prefix": f"{number}/{group[0]}"}
    with ThreadPoolExecutor(task.workers) as pool:
        running = [
            pool.submit(_work, {**order, "process": me * task.workers + local, "local": local}, task)
            for local in range(task.workers)
        ]
        results = [done.result() for done in running]
    return next((result for result in results if result["problem"]), results[0])


def _work(order: Mapping[str, object], task: Task) -> dict[str, Any]:
    environment = Environment.of_this_process().inherited() | {"LOCAL_RANK": str(order["local"])}
    command = Command((sys.executable, str(_PROBE), json.dumps(order)), environment)
    answer = capture(command, timeout_s=task.collective_limit_s + 5)
    try:
        said: dict[str, Any] = json.loads(answer.stdout)
    except ValueError:
        return {"problem": _why(answer, task.collective_limit_s)}
    return said


def _why(answer: Answer, limit_s: float) -> str:
    if answer.exit_code == _TIMED_OUT:
        return f"the collective did not end within {limit_s:g} s"
    last = answer.stderr.strip().splitlines()[-1:] or ["it said nothing"]
    return f"the worker ended with exit code {answer.exit_code}: {last[0][:300]}"


def _coordinator(board: Board, task: Task, number: int, group: Group, seats: Mapping[int, Seat]) -> str:
    """Agree on where JAX's coordinator listens: a port that is free on the group's first node."""
    key = f"coordinator/{number}/{group[0]}"
    if task.node_rank == group[0]:
        with socket.create_server(("", 0)) as free:
            address = seats[group[0]].address
            port = free.getsockname()[1]
        board.put(key, f"[{address}]:{port}" if ":" in address else f"{address}:{port}")
    return str(board.take(key, task.collective_limit_s, "the address of JAX's coordinator"))
