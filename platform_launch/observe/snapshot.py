"""What the processes of one node are doing at one moment: values, made by ``node_probe``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from platform_launch.observe.connections import UnheardConnection
from platform_launch.observe.dumps import RankTrace
from platform_launch.observe.memory import MemoryHeld
from platform_launch.observe.processes import ProcessState
from platform_launch.observe.stacks import ThreadStack, main_stack
from platform_launch.observe.work import Work

# Printing its stacks moves some data, too.
_MUCH_DATA = 4 * 1024 * 1024
# Limits of a snapshot that is sent to another node.
_MOST_PENDING, _MOST_THREADS, _MOST_FRAMES = 64, 12, 64


@dataclass(frozen=True)
class ChildSnapshot:
    """A process that a rank started: a DataLoader's worker, a compiler, a shell."""

    state: ProcessState
    threads: tuple[ThreadStack, ...] = ()


@dataclass(frozen=True)
class RankSnapshot:
    """One rank. ``gil_held``: torch's server could not get the GIL; the stacks were printed on a signal.

    ``moving`` is whether its main thread was in other functions in earlier samples, ``work`` what it did
    recently; both are None if it was not observed for long enough. ``unheard`` are its connections with
    unacknowledged packets. ``gpu_busy`` is the utilization of its GPU in the last minute, None if unknown.
    """

    rank: int
    local_rank: int | None
    state: ProcessState
    threads: tuple[ThreadStack, ...] = ()
    stacks_from: str = ""
    gil_held: bool = False
    moving: bool | None = None
    work: Work | None = None
    trace: RankTrace | None = None
    children: tuple[ChildSnapshot, ...] = ()
    unheard: tuple[UnheardConnection, ...] = ()
    problems: tuple[str, ...] = ()
    gpu_busy: float | None = None

    @property
    def main(self) -> ThreadStack | None:
        """The stack of the main thread, if it is known."""
        return main_stack(self.threads)


@dataclass(frozen=True)
class NodeSnapshot:
    """All ranks of a node. ``host`` is its name for people, ``taken_at_s`` is the time on its clock.

    ``gpus`` names the GPU of each local rank, if there are GPUs. ``memory`` is the job's peak memory.
    """

    node_rank: int
    host: str
    taken_at_s: float
    ranks: tuple[RankSnapshot, ...] = ()
    gpus: Mapping[int, str] = field(default_factory=dict)
    memory: MemoryHeld = field(default_factory=MemoryHeld)


@dataclass(frozen=True)
class Sample:
    """A sample of a rank: where its main thread was, and what it had used so far."""

    at: float
    pid: int
    main_cpu_s: float
    moved_bytes: int
    functions: tuple[tuple[str, str], ...] | None = None
    main_queued_s: float = 0.0


def with_sample(samples: Sequence[Sample], new: Sample) -> list[Sample]:
    """Add a sample, and drop those that no longer matter, so that the list stays short.

    The first and the last sample show what was used and moved, among all and among those with a stack; for
    other functions, the first sample is enough.
    """
    every = [*samples, new]
    known = [sample for sample in every if sample.functions is not None]
    elsewhere = [sample for sample in known if sample.functions != known[0].functions]
    kept = {id(sample) for sample in (every[0], new, *known[:1], *known[-1:], *elsewhere[:1])}
    return [sample for sample in every if id(sample) in kept]


def has_moved(samples: Sequence[Sample]) -> bool | None:
    """Return whether the main thread changed functions, or data was moved; None for a single sample."""
    if len(samples) < 2:
        return None
    functions = {sample.functions for sample in samples if sample.functions is not None}
    return len(functions) > 1 or samples[-1].moved_bytes - samples[0].moved_bytes >= _MUCH_DATA


def busy_share(samples: Sequence[Sample]) -> float | None:
    """Return the share of a core that the main thread used; None for a single sample.

    Time in the processor's queue is ignored, so a loop counts as computing on a crowded machine too.
    """
    if len(samples) < 2 or samples[-1].at <= samples[0].at:
        return None
    first, last = samples[0], samples[-1]
    used = last.main_cpu_s - first.main_cpu_s
    free_to_run = last.at - first.at - (last.main_queued_s - first.main_queued_s)
    return used / max(free_to_run, used) if used > 0 else used


def shortened(snapshot: NodeSnapshot) -> NodeSnapshot:
    """Return a snapshot of bounded size: a rank may have a hundred threads, and thousands of operations."""
    return replace(snapshot, ranks=tuple(_shortened(rank) for rank in snapshot.ranks))


def _shortened(rank: RankSnapshot) -> RankSnapshot:
    threads = tuple(replace(one, frames=one.frames[:_MOST_FRAMES]) for one in rank.threads[:_MOST_THREADS])
    trace = rank.trace and replace(rank.trace, pending=rank.trace.pending[:_MOST_PENDING])
    children = tuple(replace(child, threads=child.threads[:1]) for child in rank.children)
    return replace(rank, threads=threads, trace=trace, children=children)
