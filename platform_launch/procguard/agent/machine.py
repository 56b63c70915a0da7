"""Reads this node's quarantine, its use and that of its GPUs, in separate threads.

Shared storage or a driver may hang.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import psutil

from platform_launch.errors import InputError
from platform_launch.hardware import running
from platform_launch.hardware.use import GpuMeter, read_machine_use
from platform_launch.health import quarantine
from platform_launch.procguard.agent.records import MARKER
from platform_launch.procguard.api.wire import ForeignGpuProcess, GpuReport, MachineReport, QuarantineReport
from platform_launch.sentences import Sentence

_QUARANTINE_EVERY_S = 10.0
# A first heartbeat without this would tell the server that the node was released.
_FIRST_S = 2.0


class QuarantineWatch:
    """Reads the quarantine file every ten seconds, and releases this node if the server asks for that.

    ``names`` are the node's possible names there, ``gpus`` the UUIDs of its GPUs; ``file`` is None without a
    quarantine file. ``held`` is the node's quarantine now.
    """

    def __init__(
        self,
        file: Path | None,
        names: Collection[str],
        gpus: Collection[str],
        log: Callable[[str, str], None],
    ) -> None:
        self.held: QuarantineReport | None = None
        self._file = file
        self._candidates = dict.fromkeys(names, gpus)
        self._log = log
        self._logged = ""
        self._wanted: float | None = None
        self._release_requested = threading.Event()
        self._has_looked = threading.Event()

    def start(self) -> None:
        """Start reading, for the life of the process; wait briefly for the first reading."""
        if self._file is not None:
            threading.Thread(target=self._run, args=(self._file,), daemon=True).start()
            self._has_looked.wait(_FIRST_S)

    def release(self, since: float | None) -> None:
        """Request the end of the quarantine that began at ``since``; a repeated request is carried out
        once.
        """
        if since is not None and since != self._wanted:
            self._wanted = since
            self._release_requested.set()

    def poll(self, file: Path) -> None:
        """Release the node if requested, and read the file."""
        trouble = ""
        try:
            held = self._read(file)
            if held is not None and held.since == self._wanted:
                try:
                    quarantine.release(file, held.node, "through ProcGuard")
                except InputError as error:
                    trouble = str(error)  # tried again at the next poll
                else:
                    held = self._read(file)
        except InputError as error:
            self._log_once("WARN", f"{error}; it is unknown whether this node is in quarantine")
            return
        self.held = None if held is None else _report(held, trouble)
        self._log_once("WARN", self._describe(held, trouble))

    def _read(self, file: Path) -> quarantine.QuarantinedNode | None:
        found = quarantine.quarantined(quarantine.read(file), self._candidates)
        return next(iter(found.values()), None)

    def _describe(self, held: quarantine.QuarantinedNode | None, trouble: str) -> str:
        if held is None:
            return ""
        return f"this node is {held.describe()}" + (f"; {trouble}" if trouble else "")

    def _log_once(self, level: str, text: str) -> None:
        if text != self._logged:
            self._log(level if text else "INFO", text or "this node is no longer in quarantine")
        self._logged = text

    def _run(self, file: Path) -> None:
        while True:
            self.poll(file)
            self._has_looked.set()
            self._release_requested.wait(_QUARANTINE_EVERY_S)
            self._release_requested.clear()


def _report(held: quarantine.QuarantinedNode, trouble: str) -> QuarantineReport:
    reason_sentence = None
    with suppress(ValueError, RecursionError):  # anybody may write that file
        reason_sentence = Sentence.read(held.sentence) if held.sentence else None
    return QuarantineReport(
        name=held.node[:400],
        since=held.since,
        until=held.until,
        reason=held.reason,
        reason_sentence=reason_sentence,
        job=held.job[:400],
        trouble=trouble[:400],
    )


T = TypeVar("T")

_EVERY_S = 2.0
# Older readings are dropped: the driver hangs.
_FRESH_S = 15.0
_MOST = 32
_MOST_PROCESSES = 64


class MachineMonitor:
    """Keeps the latest readings. Free space is that of the disk of ``directory``.

    This agent's own runs carry ``instance``.
    """

    def __init__(self, meter: GpuMeter, directory: Path, instance: str) -> None:
        self._meter = meter
        self._ours = f"{instance}:"
        self.gpu_processes: tuple[ForeignGpuProcess, ...] = ()
        self._directory = directory
        self.machine: MachineReport | None = None
        self._last: tuple[GpuReport, ...] = ()
        self._read_at = float("-inf")

    def start(self) -> None:
        """Start reading, for the life of the process."""
        threading.Thread(target=self._run, daemon=True).start()
        threading.Thread(target=self._read_machine, daemon=True).start()

    def latest(self) -> tuple[GpuReport, ...]:
        """Return the last reading of the GPUs, nothing if it is too old."""
        return self._last if time.monotonic() - self._read_at < _FRESH_S else ()

    def _read_machine(self) -> None:
        while True:
            use = read_machine_use(self._directory)
            self.machine = MachineReport.model_validate(
                asdict(use) | {"cpu_percent": min(use.cpu_percent, 100.0)}
            )
            time.sleep(_EVERY_S)

    def _run(self) -> None:
        while True:
            self._last = tuple(GpuReport.model_validate(asdict(use)) for use in self._meter.read())
            self.gpu_processes = tuple(self._others())[:_MOST_PROCESSES]
            self._read_at = time.monotonic()
            time.sleep(_EVERY_S)

    def _others(self) -> Iterator[ForeignGpuProcess]:
        """Yield the processes on the GPUs that belong to no run of this agent."""
        for holder in self._meter.holders():
            if (running.variable(holder.pid, MARKER) or "").startswith(self._ours):
                continue
            user = name = ""
            with suppress(psutil.Error, KeyError):  # of another container, or it has ended
                process = psutil.Process(holder.pid)
                user, name = process.username()[:64], process.name()[:64]
            yield ForeignGpuProcess(
                gpu=holder.gpu, pid=holder.pid, user=user, name=name, memory_gib=holder.memory_gib
            )


def share(found: Sequence[T], number: int, workers: int) -> tuple[T, ...]:
    """Return the items that belong to worker ``number`` of ``workers``: one each, or equal parts.

    If there are fewer GPUs than workers, several share one. This is for display only; LOCAL_RANK decides
    which GPU a process uses.
    """
    first = number * len(found) // workers
    after = max(first + 1, (number + 1) * len(found) // workers)
    return tuple(found[first:after][:_MOST])
