"""Groups: their settings, their state, their rank tables and their runs."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, Field, StringConstraints
from pydantic_core import PydanticCustomError

from platform_launch.procguard.api.ranks import Place, RankTable, WorkerKind
from platform_launch.procguard.api.shapes import Shape
from platform_launch.procguard.api.shapes.people import UserName
from platform_launch.procguard.api.wire import NODE_PATTERN, PLACE_VARIABLES
from platform_launch.sentences import Value
from platform_launch.why.answer.verdict import Verdict

GroupName = Annotated[str, StringConstraints(pattern=NODE_PATTERN)]
"""Group names follow the same rule as node names."""


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
    """The phase of a group. ``degraded`` is not stored: a running group is degraded while a worker is
    silent.
    """

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
    """The settings of a group."""

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
    """As typed in a shell, but run without one: it is only split into words. Empty: each agent's default."""
    directory: Annotated[
        str, StringConstraints(strip_whitespace=True, max_length=1_000, pattern=r"^[^\x00]*$")
    ] = ""
    """Where the command starts, relative to each agent's directory. Empty: that directory."""
    environment: Annotated[dict[VariableName, VariableValue], Field(max_length=64)] = {}
    """Additional variables of the command. Everybody who may view the group sees them."""
    max_restarts: Annotated[int, Field(ge=0, le=1_000)] = 0
    backoff_s: Annotated[float, Field(ge=0, le=300)] = 5.0
    """Delay before the first restart; doubled for each further one, up to five minutes."""
    silent_after_s: Annotated[float, Field(ge=2, le=86_400)] = 15.0
    """A worker is silent after this long without a heartbeat, and its running group degraded."""
    fail_after_s: Annotated[float, Field(ge=2, le=86_400)] = 300.0
    """A running group fails when a worker has been silent this long; sooner if the other ranks are
    stalled.
    """
    ready_within_s: Annotated[float, Field(ge=2, le=86_400)] = 60.0
    """All workers must be ready to start within this time."""
    grace_s: Annotated[float, Field(ge=0, le=3_600)] = 25.0
    """Time between SIGTERM and SIGKILL when the group is stopped."""
    owners: Annotated[list[UserName], Field(max_length=64)] = []
    """Users who may change and start the group, besides admins. Empty: every operator."""
    shared_gpus: bool = False
    """Start even if processes of other users hold the GPUs."""
    queue_workers: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Number of free workers that the group starts with when it is queued."""
    queue_nodes: Annotated[str, StringConstraints(strip_whitespace=True, max_length=400)] = ""
    """Nodes whose workers it may then use: patterns of names or labels, ``gn1* h100``. Empty: any."""
    hold_until: AwareDatetime | None = None
    """When the group is stopped and its workers are released."""
    idle_percent: Annotated[float, Field(ge=0, le=100)] = 5.0
    idle_minutes: Annotated[float, Field(ge=0, le=100_000)] = 60.0
    """A running group below ``idle_percent`` GPU use for this long is reported; 0: never."""
    idle_stop: bool = False
    """Whether it is stopped as well."""
    notify: bool = True
    """Whether the user who started a run gets notices about it."""
    note: Annotated[str, StringConstraints(strip_whitespace=True, max_length=2_000)] = ""
    links: Annotated[list[Link], Field(max_length=16)] = []
    """URLs that belong to the group: W&B, TensorBoard, code."""


class NewGroup(Shape):
    """A group to create."""

    name: GroupName
    settings: GroupSettings = GroupSettings()
    like: GroupName | None = None
    """Copy the settings of this group instead."""


class GroupFailure(Shape):
    """Why a group failed: the first worker that failed, and the verdict for its log if there is one.

    ``text`` is English, made from ``code`` and ``values``; the code is ``quoted`` for free text.
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
    """The source of ``verdict``; None if the agent sent text only."""
    line: int | None = None
    """The line of the worker's log that the verdict is based on, from 1."""
    log: bool = False
    """Whether there is a log to read."""


class Deadline(Shape):
    """What happens after some seconds if nothing changes.

    ``what``: fails (workers are not ready, or silent, for too long) or restarts.
    """

    what: Literal["fails", "restarts"]
    in_s: float


class GroupDocument(Shape):
    """The part of a group that is both stored and shown."""

    name: str
    settings: GroupSettings
    phase: GroupPhase
    phase_since: datetime
    generation: int = 0
    """Counts the runs of its workers, across groups too; identifies their logs."""
    run_number: int = 0
    """Counts the group's own runs, from 1; 0 before the first."""
    requested_by: str = ""
    """The user who started the newest run."""
    requested_at: datetime | None = None
    restarts_used: int = 0
    failure: GroupFailure | None = None
    previous_failure: GroupFailure | None = None
    """Why the previous run failed, while the group restarts automatically and runs."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    queued_at: datetime | None = None
    """When it joined the queue."""


class GroupShape(GroupDocument):
    """A group as people see it."""

    workers: list[str]
    silent: list[str]
    """Workers whose heartbeat is overdue."""
    waiting_for: list[str]
    """While preparing: the workers that are not ready. While stopping: those that still run."""
    deadline: Deadline | None
    queue_place: int | None = None
    """Its position in the queue, from 1."""


class Changed(Shape):
    """The answer to start, stop and restart. ``changed`` is False if the group already was in that state."""

    group: GroupShape
    changed: bool


class Move(Shape):
    """Workers to move to a group; None takes them out of theirs."""

    workers: Annotated[list[Annotated[str, StringConstraints(max_length=80)]], Field(max_length=10_000)]
    group: GroupName | None


class RankPreview(RankTable):
    """The rank table of the next start, with the variables that each place's worker will be started with."""

    environments: list[dict[str, str]] = []


class RunShape(Shape):
    """A run in a group's history. ``restart`` numbers automatic restarts, 0 for a start by a user.

    ``outcome``: finished, failed or stopped; None while it runs. ``command`` is rank 0's.
    """

    group: str
    number: int
    generation: int
    requested_by: str
    requested_at: datetime
    restart: int
    started_at: datetime | None
    ended_at: datetime | None
    outcome: GroupPhase | None
    failure: GroupFailure | None
    command: list[str]
    world_size: int


class RunDetail(RunShape):
    """A run with its settings and rank table."""

    settings: GroupSettings
    places: tuple[Place, ...]
