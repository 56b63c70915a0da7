"""A worker as the server knows it at one moment, the basis of decisions about groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from platform_launch.errors import UnfitNodeError
from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.wire import ForeignGpuProcess, WorkerReport, WorkerState


class WorkerSnapshot(NamedTuple):
    """A worker at one moment. Thousands are made every second.

    ``report`` is the last one, None if there was none since the server started; ``same`` counts heartbeats in
    a row with the same state. ``silent_s`` counts from the last heartbeat, or from when the server began to
    listen. ``ended_at`` is when the reported run ended, on the server's monotonic clock. ``generation`` is
    the highest this worker ever had. ``names`` (host name and addresses), ``command`` (for groups that set
    none) and ``labels`` are its agent's; ``drained``, ``quarantined`` and ``gpu_processes`` (of other users)
    are its node's.
    """

    worker: WorkerName
    report: WorkerReport | None = None
    same: int = 0
    silent_s: float = 0.0
    ended_at: float | None = None
    generation: int = 0
    names: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    drained: bool = False
    quarantined: bool = False
    gpu_processes: tuple[ForeignGpuProcess, ...] = ()

    @property
    def gpus_held(self) -> list[ForeignGpuProcess]:
        """Return the processes of other users on this worker's GPUs."""
        mine = {gpu.index for gpu in self.report.gpus} if self.report else set()
        return [process for process in self.gpu_processes if process.gpu in mine]

    @property
    def busy(self) -> bool:
        """Whether it reports a process."""
        return self.report is not None and self.report.state in (WorkerState.RUNNING, WorkerState.STOPPING)

    @property
    def unfit(self) -> bool:
        """Whether its launcher exited because a device of the node has failed."""
        return self.report is not None and self.report.exit_code == UnfitNodeError.exit_code

    def is_in(self, generation: int, *states: WorkerState) -> bool:
        """Return whether it reports one of these states for this generation."""
        report = self.report
        return report is not None and report.generation == generation and report.state in states


Members = Mapping[WorkerName, WorkerSnapshot]
"""The workers of a group, all at the same moment."""
