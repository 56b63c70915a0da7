"""One process of a JAX collective: checks its numbers, measures latency and bandwidth.

Used by ``collective.py``, which documents orders and answers.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

_MIB = 1024**2
_LARGEST = 64 * _MIB
_LONG_ENOUGH_S = 0.2


def collective(order: dict[str, Any]) -> dict[str, object]:
    """Join the group, check and measure. JAX must not detect a cluster by itself."""
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    jax.distributed.initialize(
        order["coordinator"],
        order["processes"],
        order["process"],
        cluster_detection_method="deactivate",
        initialization_timeout=int(order["limit_s"]),
    )
    processes = order["processes"]
    mine = np.arange(1000) + order["process"]
    gathered = np.asarray(multihost_utils.process_allgather(mine)).reshape(processes, -1)
    expected = np.arange(1000) + np.arange(processes)[:, None]
    if not np.array_equal(gathered, expected):
        return {"problem": "all-gather gave other numbers than the processes brought", "wrong": True}
    reduce, devices = all_reduce()
    total = float(reduce(data(devices, 1))[0])
    if total != devices:
        return {"problem": f"a sum over {devices} devices gave {total:g}", "wrong": True}
    times = [seconds(reduce, data(devices, 1)) for _ in range(20)]
    return {"latency_us": statistics.median(times) * 1e6, "bandwidth_gbps": bandwidth(reduce, devices)}


def all_reduce() -> tuple[Any, int]:
    """Return a function that sums the rows of a matrix, one row per device, on every device."""
    import jax

    summed = jax.jit(lambda rows: rows.sum(axis=0), out_shardings=sharded(jax.device_count()))
    return lambda rows: summed(rows).addressable_data(0), jax.device_count()


def data(devices: int, length: int) -> Any:
    """Return a matrix of ones with one row on each device."""
    import jax
    import numpy as np

    rows = sharded(devices, "devices")
    return jax.make_array_from_callback((devices, length), rows, lambda _: np.ones((1, length), np.float32))


def sharded(devices: int, *axes: str) -> Any:
    """Return the sharding of an array: one row per device, or (without axes) all of it on each device."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    spec: Any = PartitionSpec
    return NamedSharding(jax.make_mesh((devices,), ("devices",)), spec(*axes))


def bandwidth(reduce: Any, devices: int) -> float:
    """Return the bus bandwidth in Gbit/s: in an all-reduce, each link carries 2 (n - 1) / n of the data.

    The size grows equally in all processes: the first process's time decides.
    """
    import numpy as np
    from jax.experimental import multihost_utils

    size = _MIB
    while True:
        rows = data(devices, size // 4)
        seconds(reduce, rows)  # compiles
        took = min(seconds(reduce, rows) for _ in range(2))
        took = float(multihost_utils.broadcast_one_to_all(np.float32(took)))
        if took >= _LONG_ENOUGH_S or size >= _LARGEST:
            return size * 8 * 2 * (devices - 1) / devices / took / 1e9
        size *= 2


def seconds(reduce: Any, rows: Any) -> float:
    """Return the time of one call."""
    began = time.perf_counter()
    reduce(rows).block_until_ready()
    return time.perf_counter() - began
