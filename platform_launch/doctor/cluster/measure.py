"""One node's share of a group's collective: worker processes that are given a limit of time."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from platform_launch.doctor.cluster.document import DoctorTask, Share
from platform_launch.doctor.cluster.pairing import Group
from platform_launch.environment import Environment
from platform_launch.supervise import Answer, Command, capture

_PROBE = Path(__file__).parents[1] / "probes" / "collective.py"
_TIMED_OUT = 124


def take_part(task: DoctorTask, number: int, group: Group, jax_address: str) -> Share:
    """Run this node's workers of round ``number`` and return what they say.

    ``jax_address`` is where the coordinator of JAX listens, where that is the backend.
    """
    me = group.index(task.node_rank)
    order: dict[str, object] = {
        "limit_s": task.collective_limit_s,
        "processes": len(group) * task.workers,
        "backend": task.backend,
    }
    if task.backend == "jax":
        order["coordinator"] = jax_address
    else:  # torch's own meeting has a corner of node 0's store, as a user's script would have a store
        order |= {"host": task.master_addr, "port": task.rendezvous_port, "prefix": f"{number}/{group[0]}"}
    with ThreadPoolExecutor(task.workers) as pool:
        running = [
            pool.submit(_work, {**order, "process": me * task.workers + local, "local": local}, task)
            for local in range(task.workers)
        ]
        shares = [done.result() for done in running]
    share = next((share for share in shares if share.problem), shares[0])
    return replace(share, round=number)


def free_address(address: str) -> str:
    """Return an address of this node with a port that is free now."""
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _work(order: Mapping[str, object], task: DoctorTask) -> Share:
    environment = Environment.of_this_process().inherited() | {"LOCAL_RANK": str(order["local"])}
    command = Command((sys.executable, str(_PROBE), json.dumps(order)), environment)
    answer = capture(command, timeout_s=task.collective_limit_s + 5)
    try:
        found: dict[str, Any] = json.loads(answer.stdout)
        return Share(
            -1,
            str(found["problem"]),
            bool(found.get("wrong", False)),
            float(found.get("latency_us", 0.0)),
            float(found.get("bandwidth_gbps", 0.0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return Share(-1, _why(answer, task.collective_limit_s))


def _why(answer: Answer, limit_s: float) -> str:
    if answer.exit_code == _TIMED_OUT:
        return f"the collective did not end within {limit_s:g} s"
    last = answer.stderr.strip().splitlines()[-1:] or ["it said nothing"]
    return f"the worker ended with exit code {answer.exit_code}: {last[0][:300]}"
