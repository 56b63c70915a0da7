"""One process of a collective: checks its numbers, measures latency and bandwidth.

Used by ``collective.py``, which documents orders and answers.
"""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

_MIB = 1024**2
_LONG_ENOUGH_S = 0.2
_TRIES = 3
_FAREWELL_S = 5


def collective(order: dict[str, Any]) -> dict[str, object]:
    """Join the group, check and measure."""
    import torch
    from torch import distributed as dist

    limit = timedelta(seconds=order["limit_s"])
    device = torch.device("cpu")
    if order["backend"] == "nccl":
        device = torch.device("cuda", order["local"])
        torch.cuda.set_device(device)
    host, _, port = order["coordinator"].rpartition(":")
    serves = order["process"] == 0
    store = dist.TCPStore(host.strip("[]"), int(port), None, serves, limit)  # type: ignore[attr-defined]
    dist.init_process_group(
        order["backend"],
        store=store,
        rank=order["process"],
        world_size=order["processes"],
        timeout=limit,
    )
    wrong = check(order["process"], order["processes"], device)
    if wrong:
        return {"problem": wrong, "wrong": True}
    largest = 64 * _MIB if device.type == "cpu" else 512 * _MIB
    found: dict[str, object] = {
        "latency_us": seconds_of_all_reduce(1, device, repeat=20) * 1e6,
        "bandwidth_gbps": bandwidth_gbps(order["processes"], device, largest),
    }
    await_all(store, order["processes"])
    return found


def await_all(store: Any, processes: int) -> None:
    """Wait a little for the others: exiting first would reset connections that they still read."""
    if store.add("done", 1) == processes:
        store.set("all done", "")
    with suppress(RuntimeError):  # a peer failed, and reports it itself
        store.wait(["all done"], timedelta(seconds=_FAREWELL_S))


def check(rank: int, processes: int, device: Any) -> str:
    """Reduce and gather numbers that differ between the processes; return what is wrong with the result."""
    import torch
    from torch import distributed as dist

    numbers = torch.arange(100_000, device=device) + rank
    dist.all_reduce(numbers)
    expected = torch.arange(100_000, device=device) * processes + sum(range(processes))
    if not torch.equal(numbers, expected):
        at = int((numbers != expected).nonzero()[0])
        return f"all-reduce gave {int(numbers[at])} instead of {int(expected[at])} at element {at}"
    gathered = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(processes)]
    dist.all_gather(gathered, torch.tensor([rank], device=device))
    values = [int(value) for value in gathered]
    return "" if values == list(range(processes)) else f"all-gather gave {values}"


def bandwidth_gbps(processes: int, device: Any, largest: int) -> float:
    """Return the bus bandwidth: in an all-reduce, each link carries 2 (n - 1) / n of the data."""
    size = _MIB
    while True:
        seconds = slowest(seconds_of_all_reduce(size, device), device)
        if seconds >= _LONG_ENOUGH_S or size >= largest:
            break
        size *= 2
    if seconds < 2:  # the best of a few: other work on the machine makes them slower, never faster
        again = [slowest(seconds_of_all_reduce(size, device), device) for _ in range(_TRIES)]
        seconds = min(seconds, *again)
    return size * 8 * 2 * (processes - 1) / processes / seconds / 1e9


def slowest(seconds: float, device: Any) -> float:
    """Return the largest time of all processes, so that all decide the same."""
    import torch
    from torch import distributed as dist

    value = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value)


def seconds_of_all_reduce(size: int, device: Any, repeat: int = 1) -> float:
    """Return the median time of an all-reduce of ``size`` bytes."""
    import torch
    from torch import distributed as dist

    data = torch.ones(size, dtype=torch.uint8, device=device)
    times = []
    for _ in range(repeat):
        dist.barrier()
        wait(device)
        began = time.perf_counter()
        dist.all_reduce(data, op=dist.ReduceOp.MAX)
        wait(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def wait(device: Any) -> None:
    """Wait until the GPU is done."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
