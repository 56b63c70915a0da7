"""Workers and nodes as they are."""

from __future__ import annotations

from enum import Enum

from platform_launch.procguard.api.shapes import Shape
from platform_launch.procguard.api.wire import (
    ForeignGpuProcess,
    GpuReport,
    MachineReport,
    QuarantineReport,
    WorkerState,
)
from platform_launch.sentences import Sentence
from platform_launch.why.answer.verdict import Verdict


class WorkerStatus(str, Enum):
    """What a worker is, in one word: the same in badges, filters and tables.

    Its agent's report, with what the server knows beside it: whether it is heard, and who failed first.
    """

    UNKNOWN = "unknown"
    """Not heard since this server was started."""
    IDLE = "idle"
    READY = "ready"
    REFUSED = "refused"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    """Its command ended by itself, and well."""
    STOPPED = "stopped"
    """It was ended by an order, most often since another worker had failed."""
    FAILED = "failed"
    FAILED_FIRST = "failed-first"
    """The one that its group failed for."""
    LOST = "lost"
    SILENT = "silent"


class WorkerShape(Shape):
    """A worker as it is. ``heartbeat_age_s`` None: none since this server was started."""

    worker: str
    node: str
    number: int
    group: str | None
    status: WorkerStatus
    state: WorkerState
    """What its agent reported last."""
    silent: bool
    generation: int
    rank: int | None
    local_rank: int | None
    restarts: int
    exit_code: int | None
    stop_requested: bool
    """Whether its end was an order: then the exit code is no failure."""
    reason: str
    reason_sentence: Sentence | None
    """What ``reason`` is made from, None where its agent only sends words."""
    verdict: str
    """What ``why`` makes of its log, where it failed."""
    why: Verdict | None
    """What ``verdict`` is made from, None where its agent only sends words."""
    heartbeat_age_s: float | None
    gpus: list[GpuReport]
    steps_per_s: float | None
    """From its output; None where it counts no steps there."""
    pid: int | None
    limited: bool
    """Whether its agent only starts some commands: those of its node."""


class NodeShape(Shape):
    """A node as it is: its agent, its machine and what its workers do."""

    node: str
    hostname: str
    version: str
    """Of its agent."""
    labels: list[str]
    """What it is, by its agent's ``--label``."""
    workers: list[str]
    counts: dict[WorkerStatus, int]
    groups: list[str]
    silent: bool
    heartbeat_age_s: float | None
    drained_by: str
    """Who wants nothing new started here; empty where nobody does."""
    quarantine: QuarantineReport | None
    """Why and until when no job should be put here, as its agent reads it in the quarantine file."""
    release_requested: bool
    """Whether its agent was told to end the quarantine and has not done so yet."""
    limited_to: list[str] | None
    """The commands its agent is limited to; None: any."""
    machine: MachineReport | None
    gpu_processes: list[ForeignGpuProcess]
    """Other people's processes on its GPUs."""
    gpus: list[GpuReport]


class Drain(Shape):
    """Whether nothing new is to start on a node."""

    drained: bool
