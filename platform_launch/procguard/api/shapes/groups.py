"""Groups: what a person sets of one, and what one is."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, Field, StringConstraints
from pydantic_core import PydanticCustomError

from platform_launch.procguard.api.ranks import WorkerKind
from platform_launch.procguard.api.shapes import Shape
from platform_launch.procguard.api.shapes.people import UserName
from platform_launch.procguard.api.wire import NODE_PATTERN, PLACE_VARIABLES
from platform_launch.sentences import Value
from platform_launch.why.answer.verdict import Verdict

GroupName = Annotated[str, StringConstraints(pattern=NODE_PATTERN)]
"""What a group may be called: the same as a node."""


def _not_of_the_rank(name: str) -> str:
    if name in PLACE_VARIABLES or name.startswith("PROCGUARD_"):
        raise PydanticCustomError("set_by_procguard", "it is set by ProcGuard")
    return name


VariableName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"),
    AfterValidator(_not_of_the_rank),
]
VariableValue = Annotated[str, StringConstraints(max_length=4_000, pattern=r"^[^\x00]*$")]


Link = Annotated[str, StringConstraints(pattern=r"^https?://[!-~]+$", max_length=1_000)]


class GroupPhase(str, Enum):
    """Where a group is. ``degraded`` is not kept: a group is that while it runs and a worker is silent."""

    IDLE = "idle"
    QUEUED = "queued"
    PREPARING = "preparing"
    RUNNING = "running"
    DEGRADED = "degraded"
    STOPPING = "stopping"
    BACKING_OFF = "backing-off"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


class GroupSettings(Shape):
    """What a person sets of a group."""

    master_addr: Annotated[
        str, StringConstraints(strip_whitespace=True, max_length=253, pattern=r"^[^\x00-\x20\x7f]*$")
    ] = ""
    master_port: Annotated[int, Field(ge=1, le=65535)] = 29500
    world_size: Annotated[int, Field(ge=1, le=100_000)] | None = None
    backend: Literal["nccl", "gloo"] = "nccl"
    kind: WorkerKind = WorkerKind.PROCESS
    command: Annotated[
        str, StringConstraints(strip_whitespace=True, max_length=4_000, pattern=r"^[^\x00]*$")
    ] = ""
    """As typed in a shell, but no shell reads it: words are split by its rules. Empty: each agent's own."""
    directory: Annotated[
        str, StringConstraints(strip_whitespace=True, max_length=1_000, pattern=r"^[^\x00]*$")
    ] = ""
    """Where the command starts, from each agent's own directory. Empty: there."""
    environment: Annotated[dict[VariableName, VariableValue], Field(max_length=64)] = {}
    """Variables of the command beside those of its rank. Whoever may look sees them."""
    max_restarts: Annotated[int, Field(ge=0, le=1_000)] = 0
    backoff_s: Annotated[float, Field(ge=0, le=300)] = 5.0
    """Before the first restart; doubled for each further one, five minutes at most."""
    silent_after_s: Annotated[float, Field(ge=2, le=86_400)] = 15.0
    """A worker without a heartbeat for so long is silent, and its running group degraded."""
    fail_after_s: Annotated[float, Field(ge=2, le=86_400)] = 300.0
    """A running group fails when a worker was silent for so long; sooner if no other rank makes progress."""
    ready_within_s: Annotated[float, Field(ge=2, le=86_400)] = 60.0
    """All workers must be ready to start within this time."""
    grace_s: Annotated[float, Field(ge=0, le=3_600)] = 25.0
    """Between SIGTERM and SIGKILL when the group is stopped."""
    owners: Annotated[list[UserName], Field(max_length=64)] = []
    """Who may change and start the group, beside admins. Empty: every operator."""
    shared_gpus: bool = False
    """Start although other people's processes hold the GPUs."""
    queue_workers: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """How many free workers the group starts with when it is queued."""
    queue_nodes: Annotated[str, StringConstraints(strip_whitespace=True, max_length=400)] = ""
    """The nodes whose workers it takes then: patterns of names or labels, ``gn1* h100``. Empty: any."""
    hold_until: AwareDatetime | None = None
    """When the group is stopped and its workers leave it."""
    idle_percent: Annotated[float, Field(ge=0, le=100)] = 5.0
    idle_minutes: Annotated[float, Field(ge=0, le=100_000)] = 60.0
    """A running group that uses less of its GPUs for so long is reported; 0: never."""
    idle_stop: bool = False
    """Whether it is stopped as well."""
    notify: bool = True
    """Whether whoever started a run is sent notices of it."""
    note: Annotated[str, StringConstraints(strip_whitespace=True, max_length=2_000)] = ""
    links: Annotated[list[Link], Field(max_length=16)] = []
    """Addresses that belong to the group: W&B, TensorBoard, code."""


class NewGroup(Shape):
    """A group to create."""

    name: GroupName
    settings: GroupSettings = GroupSettings()
    like: GroupName | None = None
    """Take the settings of this group instead."""


class GroupFailure(Shape):
    """Why a group failed: the first worker that did, and the verdict over its log where there is one.

    ``text`` is English, made from ``code`` and ``values``; the code is ``quoted`` for somebody's own words.
    """

    worker: str | None
    text: str
    code: str = ""
    values: dict[str, Value] = {}
    run_number: int = 0
    generation: int = 0
    exit_code: int | None = None
    verdict: str = ""
    why: Verdict | None = None
    """What ``verdict`` is made from, None where its agent only sends words."""
    line: int | None = None
    """The line of the worker's log that the verdict rests on, from 1."""
    log: bool = False
    """Whether there is a log to read."""


class Deadline(Shape):
    """What happens by itself after some seconds, if nothing changes until then.

    ``what``: fails (workers are not ready, or silent, for too long) or restarts.
    """

    what: Literal["fails", "restarts"]
    in_s: float


class GroupDocument(Shape):
    """What is known of a group: what is stored, and what people see."""

    name: str
    settings: GroupSettings
    phase: GroupPhase
    phase_since: datetime
    generation: int = 0
    """Counts the runs of its workers, across groups too; names their logs."""
    run_number: int = 0
    """Counts the group's own runs, from 1; 0 before the first."""
    requested_by: str = ""
    """Who asked for the newest run."""
    requested_at: datetime | None = None
    restarts_used: int = 0
    failure: GroupFailure | None = None
    previous_failure: GroupFailure | None = None
    """Why the run before failed, while the group restarts by itself and runs."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    queued_at: datetime | None = None
    """Since when it waits for free workers."""


class GroupShape(GroupDocument):
    """A group as people see it."""

    workers: list[str]
    silent: list[str]
    """Workers whose heartbeat is overdue."""
    waiting_for: list[str]
    """While preparing: the workers that are not ready. While stopping: those that still run."""
    deadline: Deadline | None
    queue_place: int | None = None
    """Its place in the queue, from 1."""


class Changed(Shape):
    """The answer to start, stop and restart. ``changed`` False: it was so already."""

    group: GroupShape
    changed: bool


class Move(Shape):
    """Workers to move to a group; None takes them out of theirs."""

    workers: Annotated[list[Annotated[str, StringConstraints(max_length=80)]], Field(max_length=10_000)]
    group: GroupName | None
