"""Observes the processes of one node: samples, and snapshots from every source that answers in time.

Sources, in order: torch's own server (collectives, stacks), faulthandler's signal (stacks, also while a
thread holds the GIL), py-spy if it is installed, /proc. ``problems`` lists what failed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TypeVar

from platform_launch.observe import processes
from platform_launch.observe.connections import moved_by_sockets, unheard_connections
from platform_launch.observe.dumps import RankTrace
from platform_launch.observe.memory import MemoryHeld
from platform_launch.observe.processes import ProcessState
from platform_launch.observe.py_spy import ask_py_spy
from platform_launch.observe.snapshot import (
    ChildSnapshot,
    NodeSnapshot,
    RankSnapshot,
    Sample,
    has_moved,
    with_sample,
)
from platform_launch.observe.stacks import ThreadStack, main_stack, parse_stacks
from platform_launch.observe.work import Usage, WorkMeter
from platform_launch.observe.workers import (
    HookedProcess,
    NoAnswerError,
    ask_collectives,
    ask_faulthandler,
    ask_torch,
    find_hooked,
    find_unhooked,
)
from platform_launch.process_stat import catches, read_stat

T = TypeVar("T")

_TORCH_LIMIT_S = 1.5
# How long until a process counts as holding its GIL; on a loaded machine, an answer may be late.
_SURE_LIMIT_S = 3.0
_SIGNAL_LIMIT_S = 2.0
# The limit for all children of a rank: the caller waits 8 s for a node, and ignores later answers.
_CHILDREN_LIMIT_S = 3.0
_AT_ONCE = 16
_MOST_CHILDREN = 16


class NodeProbe:
    """Observes the hooked processes of one node, and remembers earlier samples.

    If there are none, it observes those below the process ``root`` that have a rank in their environment.
    ``slowed_devices()`` returns what holds GPUs back, by their names in ``gpus``.
    """

    def __init__(
        self,
        folder: Path,
        node_rank: int,
        host: str,
        gpus: Mapping[int, str] | None = None,
        root: int = 0,
        memory: Callable[[], MemoryHeld] = MemoryHeld,
        work_window_s: float = 10.0,
        slowed_devices: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._slowed_devices = slowed_devices
        self._root = root or os.getpid()
        self._folder = folder.resolve()
        self._node_rank = node_rank
        self._host = host
        self._gpus = dict(gpus or {})
        self._memory = memory
        self._samples: dict[int, list[Sample]] = {}
        self._without_gil: set[int] = set()
        self._work_window_s = work_window_s
        self._meters: dict[int, WorkMeter] = {}
        self._one_asks = Lock()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Count the ranks' work before and after this context, but not inside it, where they answer
        queries.
        """
        with self._one_asks:
            for pid, (at, usage) in self._usages().items():
                self._meters.setdefault(pid, WorkMeter(self._work_window_s)).end(at, usage)
            try:
                yield
            finally:
                usages = self._usages()
                self._meters = {pid: self._meters.get(pid, WorkMeter(self._work_window_s)) for pid in usages}
                for pid, (at, usage) in usages.items():
                    self._meters[pid].begin(at, usage)

    def forget_work(self) -> None:
        """Start counting anew with the next :meth:`asking`."""
        with self._one_asks:
            self._meters.clear()

    def _usages(self) -> dict[int, tuple[float, Usage]]:
        found = {one.pid: (time.monotonic(), processes.read_usage(one.pid)) for one in self.ranks()}
        every = {inode for _, usage in found.values() for inode in usage.sockets}
        moved = moved_by_sockets(every)
        return {
            pid: (at, replace(usage, socket_bytes={i: moved[i] for i in usage.sockets if i in moved}))
            for pid, (at, usage) in found.items()
        }

    def ranks(self) -> list[HookedProcess]:
        """Return the process of each rank; of several with one rank, the first, which started the others."""
        hooked = [one for one in find_hooked(self._folder) if one.rank is not None]
        if not hooked:  # the script's interpreter ignores its environment
            hooked = find_unhooked(self._folder, self._root)
        descendants = {child for one in hooked for child in processes.children(one.pid)}
        first: dict[int, HookedProcess] = {}
        # If a rank was restarted, its earlier process has exited.
        for one in sorted(hooked, key=lambda one: (one.pid in descendants, _ended(one), -one.pid)):
            first.setdefault(one.rank or 0, one)
        return [first[rank] for rank in sorted(first)]

    def left(
        self,
        failed_local_ranks: Collection[int],
        ended_at: Mapping[int, float],
        *,
        failed_here: bool = False,
    ) -> list[int]:
        """Return the ranks that have exited by themselves and without an exception.

        A process cannot know whether ``sys.exit`` ended it by its own choice or on request. Its launcher
        knows the ``failed_local_ranks``, and which processes it asked to stop. With ``failed_here``, some
        rank of this node failed, but it may be unknown which: if all exited without an exception, none is
        returned.
        """
        ranks = self.ranks()
        ended = [one for one in ranks if one.finished and _ended(one) and not _failed(one)]
        if failed_here and len(ended) == len(ranks):
            return []
        never = float("inf")
        return [
            one.rank or 0
            for one in ended
            if one.local_rank not in failed_local_ranks and one.described_at < ended_at.get(one.pid, never)
        ]

    def collectives(self) -> dict[int, RankTrace]:
        """Return the collectives of the ranks that answer."""

        def ask(hooked: HookedProcess) -> RankTrace | None:
            return _tried(lambda: ask_collectives(hooked, _TORCH_LIMIT_S), [])

        ranks = [one for one in self.ranks() if _answers(one)]
        return {
            one.rank or 0: answer
            for one, answer in zip(ranks, self._at_once(ask, ranks), strict=True)
            if answer
        }

    def stacks_of(self, hooked: HookedProcess) -> tuple[ThreadStack, ...]:
        """Return the stacks of a rank's threads; none if it does not answer."""
        return parse_stacks(_tried(lambda: self._stacks(hooked), []) or "", hooked.main_thread)

    def sample(self, *, stacks: bool) -> dict[int, Sample]:
        """Sample all ranks without delaying them; their stacks only if requested."""
        ranks = self.ranks()
        found = self._at_once(lambda one: self._sample(one, stacks=stacks), ranks)
        samples = {one.pid: sample for one, sample in zip(ranks, found, strict=True)}
        for pid, sample in samples.items():
            self._samples[pid] = with_sample(self._samples.get(pid, []), sample)
        return {one.rank or 0: samples[one.pid] for one in ranks}

    def forget_samples(self) -> None:
        """Discard the samples: there was progress, so the GIL was released."""
        self._samples.clear()
        self._without_gil.clear()

    def snapshot(self) -> NodeSnapshot:
        """Take a snapshot of all ranks with all sources."""
        with self.asking():
            ranks = tuple(self._at_once(self._snapshot, self.ranks()))
        return NodeSnapshot(self._node_rank, self._host, time.time(), ranks, self._gpus, self._memory())

    def _at_once(self, look: Callable[[HookedProcess], T], ranks: Sequence[HookedProcess]) -> list[T]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(look, ranks))

    def _sample(self, hooked: HookedProcess, *, stacks: bool) -> Sample:
        state = processes.read_process(hooked.pid)
        functions = None
        if stacks and not state.ended and not state.stopped:
            threads = parse_stacks(_tried(lambda: self._stacks(hooked), []) or "", hooked.main_thread)
            main = main_stack(threads)
            functions = main.functions if main is not None else None
        return _sample_of(state, functions)

    def _stacks(self, hooked: HookedProcess, *, surely: bool = False) -> str:
        """Return the stacks of a process; ``surely`` repeats a query that was slow. Raises NoAnswerError."""
        if hooked.socket.exists() and (surely or hooked.pid not in self._without_gil):
            limit_s = _SURE_LIMIT_S if surely else _TORCH_LIMIT_S
            try:
                traceback = ask_torch(hooked, "dump_traceback", limit_s)
            except NoAnswerError:
                # Each further query would block one of that server's few threads.
                self._without_gil.add(hooked.pid)
            else:
                self._without_gil.discard(hooked.pid)
                return traceback.decode(errors="replace")
        return ask_faulthandler(hooked, hooked.pid, _SIGNAL_LIMIT_S)

    def _snapshot(self, hooked: HookedProcess) -> RankSnapshot:
        problems: list[str] = []
        state = processes.read_process(hooked.pid)
        rank = hooked.rank or 0
        if state.ended:
            return RankSnapshot(rank, hooked.local_rank, state)
        answer = None
        if not state.stopped:
            answer = _tried(lambda: ask_collectives(hooked, _TORCH_LIMIT_S), problems)
        threads, source = self._threads(hooked, state, problems)
        state = processes.read_process(hooked.pid)
        main = main_stack(threads)
        functions = main.functions if main is not None else None
        samples = [*self._samples.get(hooked.pid, []), _sample_of(state, functions)]
        return RankSnapshot(
            rank,
            hooked.local_rank,
            state,
            threads,
            source,
            # A server that answers only queries that need no GIL.
            gil_held=answer is not None and hooked.pid in self._without_gil,
            moving=has_moved(samples),
            work=self._meters[hooked.pid].work() if hooked.pid in self._meters else None,
            trace=answer,
            children=self._children(hooked, problems),
            unheard=unheard_connections(hooked.pid),
            problems=tuple(problems),
            gpu_busy=self._gpu_busy(hooked.local_rank),
        )

    def slowed_device(self, local_rank: int | None) -> str:
        """Return what slows a rank's GPU down; empty if nothing is known."""
        return self._slowed_devices().get(self._gpus.get(local_rank or 0, ""), "")

    def _gpu_busy(self, local_rank: int | None) -> float | None:
        name = self._gpus.get(local_rank or 0)
        busy = self._memory().gpus_busy_now
        return next((percent for index, percent in busy.items() if f"GPU {index}" == name), None)

    def _threads(
        self, hooked: HookedProcess, state: ProcessState, problems: list[str]
    ) -> tuple[tuple[ThreadStack, ...], str]:
        if not state.stopped:  # a stopped process cannot answer
            text = _tried(lambda: self._stacks(hooked, surely=True), problems)
            if threads := parse_stacks(text or "", hooked.main_thread):
                return threads, "faulthandler" if hooked.pid in self._without_gil else "python"
        threads = _tried(lambda: ask_py_spy(hooked.pid), problems) or ()
        return threads, "py-spy" if threads else ""

    def _children(self, hooked: HookedProcess, problems: list[str]) -> tuple[ChildSnapshot, ...]:
        """Examine the children of a rank.

        Those that write to the same file are queried one after the other, while there is time: many workers
        of a data loader may hang in the kernel, and none of them would answer.
        """
        children, deadline = [], time.monotonic() + _CHILDREN_LIMIT_S
        for pid in processes.children(hooked.pid)[:_MOST_CHILDREN]:
            state, text = processes.read_process(pid), None
            asleep = not state.stopped and not state.ended
            limit_s = min(_SIGNAL_LIMIT_S, deadline - time.monotonic())
            if asleep and limit_s > 0 and hooked.signal and catches(pid, hooked.signal):
                text = _tried(partial(ask_faulthandler, hooked, pid, limit_s), problems)
            children.append(ChildSnapshot(state, parse_stacks(text or "")))
        return tuple(children)


def _sample_of(state: ProcessState, functions: tuple[tuple[str, str], ...] | None) -> Sample:
    return Sample(
        time.monotonic(), state.pid, state.main_cpu_s, state.moved_bytes, functions, state.main_queued_s
    )


def _ended(hooked: HookedProcess) -> bool:
    return processes.read_process(hooked.pid).ended


def _failed(hooked: HookedProcess) -> bool:
    stat = read_stat(Path("/proc", str(hooked.pid)))
    return stat is not None and stat.ended and stat.exit_status != 0


def _answers(hooked: HookedProcess) -> bool:
    state = processes.read_process(hooked.pid)
    return not state.ended and not state.stopped


def _tried(ask: Callable[[], T], problems: list[str]) -> T | None:
    """Query a source; record why it does not answer."""
    try:
        return ask()
    except NoAnswerError as error:
        problems.append(str(error))
        return None
