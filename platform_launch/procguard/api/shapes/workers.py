"""The state of workers and nodes."""

from __future__ import annotations

from enum import Enum

from platform_launch.procguard.api.shapes import Shape
from platform_launch.procguard.api.wire import (
    ForeignGpuProcess,
    GpuReport,
    MachineReport,
    QuarantineReport,
    WorkerReport,
)


class WorkerStatus(str, Enum):
    """A worker's status in one word, the same in badges, filters and tables.

    It combines the agent's report with what the server knows: whether heartbeats come, and who failed first.
    """

    UNKNOWN = "unknown"
    """No heartbeat since this server started."""
    IDLE = "idle"
    READY = "ready"
    REFUSED = "refused"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    """Its command ended by itself with exit code 0."""
    STOPPED = "stopped"
    """It was stopped by an order, usually because another worker had failed."""
    FAILED = "failed"
    FAILED_FIRST = "failed-first"
    """The first worker of its group to fail."""
    LOST = "lost"
    SILENT = "silent"


class WorkerShape(WorkerReport):
    """A worker: its agent's last report, and what the server knows of it.

    Without a heartbeat since this server started, the report is empty and ``heartbeat_age_s`` None.
    """

    worker: str
    node: str
    group: str | None
    status: WorkerStatus
    silent: bool
    rank: int | None
    local_rank: int | None
    restarts: int
    heartbeat_age_s: float | None
    limited: bool
    """Whether its agent only starts some commands, listed with its node."""


class NodeShape(Shape):
    """A node: its agent, its machine and its workers."""

    node: str
    hostname: str
    version: str
    """The agent's version."""
    labels: list[str]
    """From the agent's ``--label``."""
    workers: list[str]
    counts: dict[WorkerStatus, int]
    groups: list[str]
    silent: bool
    heartbeat_age_s: float | None
    drained_by: str
    """The user who drained it; empty if it is not drained."""
    quarantine: QuarantineReport | None
    """Its quarantine, as its agent reads it from the quarantine file."""
    release_requested: bool
    """Whether its agent was asked to end the quarantine and has not done so yet."""
    limited_to: list[str] | None
    """The commands its agent is limited to; None: any."""
    machine: MachineReport | None
    gpu_processes: list[ForeignGpuProcess]
    """Processes of other users on its GPUs."""
    gpus: list[GpuReport]


class Drain(Shape):
    """Whether new runs are kept off a node."""

    drained: bool
