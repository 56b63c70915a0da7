"""Reads when the ranks of this node came to their collectives, and looks closer at some of them."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from platform_launch.observe import processes
from platform_launch.observe.activity import activity_of
from platform_launch.observe.arrivals import ClockOffset, GroupArrivals, RankArrivals
from platform_launch.observe.node_probe import NodeProbe
from platform_launch.observe.slow_ranks import NodeArrivals, RankSamples, boot_id, chosen_others, most_common
from platform_launch.observe.stacks import main_stack
from platform_launch.observe.workers import HookedProcess, NoAnswerError, ask_operations

_LIMIT_S = 3.0
_AT_ONCE = 4
_SAMPLES = 20
# Random, so that a step that takes as long as the pause is not always met at the same place.
_PAUSES_S = (0.05, 0.35)


def arrivals_here(probe: NodeProbe, host: str, since_s: float, clock: ClockOffset | None) -> NodeArrivals:
    """Return when this node's ranks came to their collectives since a time (time.time())."""
    ranks = probe.ranks()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda one: _arrivals(one, since_s), ranks))
    return NodeArrivals(host, boot_id(), tuple(one for one in found if one is not None), clock)


def _arrivals(hooked: HookedProcess, since_s: float) -> RankArrivals | None:
    try:
        groups = ask_operations(hooked, _LIMIT_S, since_s)
    except NoAnswerError:
        return None
    packed = tuple(GroupArrivals.of(name, operations) for name, operations in sorted(groups.items()))
    return RankArrivals(hooked.rank or 0, packed)


def samples_here(probe: NodeProbe, slow: Sequence[int]) -> list[RankSamples]:
    """Look at slow ranks of this node in some moments, and at others for comparison; takes a few seconds."""
    ranks = {one.rank or 0: one for one in probe.ranks()}
    chosen = [rank for rank in slow if rank in ranks][:2] + chosen_others(sorted(ranks), slow)
    before = {rank: _used(ranks[rank].pid) for rank in chosen}
    begin = time.monotonic()
    places: dict[int, Counter[str]] = {rank: Counter() for rank in chosen}
    doing: dict[int, Counter[str]] = {rank: Counter() for rank in chosen}
    for _ in range(_SAMPLES):
        for rank in chosen:
            main = main_stack(probe.stacks_of(ranks[rank]))
            activity = activity_of(main.frames) if main is not None else None
            if activity is not None:
                doing[rank][activity.id] += 1
            waits = activity is not None and activity.id in ("collective", "store")
            # DDP waits for the other ranks in the backward pass.
            if main is not None and not waits and main.own is not None and not main.own.is_library:
                in_backward = any(frame.function == "_engine_run_backward" for frame in main.frames)
                places[rank][str(main.own)] += not in_backward
        time.sleep(random.uniform(*_PAUSES_S))  # noqa: S311 - no secret
    took_s = time.monotonic() - begin
    found = []
    for rank in chosen:
        main_s, queued_s, throttled_s = (
            max(after - was, 0.0) / took_s
            for after, was in zip(_used(ranks[rank].pid), before[rank], strict=True)
        )
        at = most_common(+places[rank])
        found.append(RankSamples(rank, _SAMPLES, at, most_common(doing[rank]), throttled_s, queued_s, main_s))
    return found


def _used(pid: int) -> tuple[float, float, float]:
    """Return for how long a process's main thread ran, waited for a processor, and was throttled."""
    state = processes.read_process(pid)
    return state.main_cpu_s, state.main_queued_s, processes.throttled_s(pid)
