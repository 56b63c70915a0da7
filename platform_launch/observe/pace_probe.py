"""Reads when the ranks of this node reached their collectives, and samples some of them."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch.observe import processes
from platform_launch.observe.activity import activity_of
from platform_launch.observe.arrivals import ClockOffset, GroupArrivals, RankArrivals
from platform_launch.observe.node_probe import NodeProbe
from platform_launch.observe.slow_ranks import NodeArrivals, RankSamples, boot_id, chosen_others, most_common
from platform_launch.observe.stacks import main_stack
from platform_launch.observe.workers import HookedProcess, NoAnswerError, ask_operations
from platform_launch.process_stat import read_stat

_LIMIT_S = 3.0
_AT_ONCE = 4
_SAMPLES = 20
# Share of a core; less than this delays no other rank.
_RIVAL_SHARE = 0.25
_FEWEST_SEGMENTS = 500
# Random, so that steps as long as the pause are not always sampled at the same place.
_PAUSES_S = (0.05, 0.35)


def arrivals_here(probe: NodeProbe, host: str, since_s: float, clock: ClockOffset | None) -> NodeArrivals:
    """Return when this node's ranks reached their collectives since a time (time.time())."""
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
    """Sample slow ranks of this node several times, and others for comparison; takes a few seconds."""
    ranks = {one.rank or 0: one for one in probe.ranks()}
    chosen = [rank for rank in slow if rank in ranks][:2] + chosen_others(sorted(ranks), slow)
    before = {rank: _used(ranks[rank].pid) for rank in chosen}
    node_before, all_before = NodeUse.read(os.getpid()), _cpu_of_all()
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
    node = NodeUse.read(os.getpid()).since(node_before)
    after = _cpu_of_all()
    found = []
    for rank in chosen:
        pid = ranks[rank].pid
        used = _used(pid)
        main_s, queued_s, throttled_s, faults = (
            max(now - was, 0.0) / took_s for now, was in zip(used, before[rank], strict=True)
        )
        found.append(
            RankSamples(
                rank,
                _SAMPLES,
                most_common(+places[rank]),
                most_common(doing[rank]),
                throttled_s,
                queued_s,
                main_s,
                _rival(pid, all_before, after, took_s),
                faults,
                node.stolen,
                node.resent,
                probe.slowed_device(ranks[rank].local_rank),
            )
        )
    return found


def _used(pid: int) -> tuple[float, float, float, float]:
    """Return how long a main thread ran, queued and was throttled, and the process's disk faults."""
    state, stat = processes.read_process(pid), read_stat(Path("/proc", str(pid)))
    faults = stat.disk_faults if stat is not None else 0
    return state.main_cpu_s, state.main_queued_s, processes.throttled_s(pid), float(faults)


def _cpu_of_all() -> dict[int, tuple[str, float, int]]:
    """Return the name, CPU time and last processor of each visible process on this machine."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if (stat := read_stat(folder)) is not None:
            found[int(folder.name)] = (stat.name, stat.cpu_s, stat.processor)
    return found


def _rival(
    pid: int,
    before: Mapping[int, tuple[str, float, int]],
    after: Mapping[int, tuple[str, float, int]],
    took_s: float,
) -> str:
    """Return the other process that used this one's processors most; empty if none used much."""
    try:
        processors = os.sched_getaffinity(pid)
    except OSError:
        return ""
    used = {
        other: cpu_s - before.get(other, ("", cpu_s, 0))[1]
        for other, (_, cpu_s, processor) in after.items()
        if other != pid and processor in processors
    }
    most = max(used, key=lambda other: used[other], default=0)
    enough = most and used[most] >= _RIVAL_SHARE * took_s
    return f"{after[most][0]} (pid {most})" if enough else ""


@dataclass(frozen=True)
class NodeUse:
    """The kernel's counts of a node's processor ticks and TCP segments."""

    ticks: int = 0
    stolen_ticks: int = 0
    sent: int = 0
    sent_again: int = 0

    @staticmethod
    def read(pid: int) -> NodeUse:
        """Read the counts, in the network namespace of ``pid``."""
        with suppress(OSError, ValueError, IndexError):
            ticks = [int(count) for count in _lines(Path("/proc/stat"))[0].split()[1:9]]
            tcp = [
                line.split()[1:] for line in _lines(Path(f"/proc/{pid}/net/snmp")) if line.startswith("Tcp:")
            ]
            counts = dict(zip(*tcp[:2], strict=True)) if len(tcp) > 1 else {}
            return NodeUse(
                sum(ticks), ticks[7], int(counts.get("OutSegs", 0)), int(counts.get("RetransSegs", 0))
            )
        return NodeUse()

    def since(self, before: NodeUse) -> NodeUse:
        """Return the difference to earlier counts."""
        return NodeUse(
            self.ticks - before.ticks,
            self.stolen_ticks - before.stolen_ticks,
            self.sent - before.sent,
            self.sent_again - before.sent_again,
        )

    @property
    def stolen(self) -> float:
        """The part of the processors' time that the hypervisor gave to other machines."""
        return self.stolen_ticks / self.ticks if self.ticks > 0 else 0.0

    @property
    def resent(self) -> float:
        """The part of the TCP segments that were sent again."""
        return self.sent_again / self.sent if self.sent >= _FEWEST_SEGMENTS else 0.0


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
