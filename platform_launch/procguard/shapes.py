"""What people see: the JSON of the API, which the web page uses as well."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from platform_launch.procguard.ranks import Kind
from platform_launch.procguard.wire import Gpu, State

GroupName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,62}[A-Za-z0-9])?$")]


class Shape(BaseModel):
    """A document of the API. What is sent in must hold nothing unknown: a typing error is not a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Phase(str, Enum):
    """Where a group is. ``degraded`` is not kept: a group is that while it runs and a worker is silent."""

    IDLE = "idle"
    PREPARING = "preparing"
    RUNNING = "running"
    DEGRADED = "degraded"
    STOPPING = "stopping"
    BACKING_OFF = "backing-off"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


class GroupSettings(Shape):
    """What a person sets of a group. The seed's defaults: World Size by the workers, port 29500, nccl."""

    master_addr: Annotated[
        str, StringConstraints(strip_whitespace=True, max_length=253, pattern=r"^[^\x00-\x20\x7f]*$")
    ] = ""
    master_port: Annotated[int, Field(ge=1, le=65535)] = 29500
    world_size: Annotated[int, Field(ge=1, le=100_000)] | None = None
    backend: Literal["nccl", "gloo"] = "nccl"
    kind: Kind = Kind.PROCESS
    command: Annotated[
        str, StringConstraints(strip_whitespace=True, max_length=4_000, pattern=r"^[^\x00]*$")
    ] = ""
    """As typed in a shell, but no shell reads it: words are split by its rules. Empty: each agent's own."""
    max_restarts: Annotated[int, Field(ge=0, le=1_000)] = 0
    backoff_s: Annotated[float, Field(ge=0, le=300)] = 5.0
    """Before the first restart; doubled for each further one, five minutes at most."""
    silent_after_s: Annotated[float, Field(ge=2, le=86_400)] = 15.0
    """A worker without a heartbeat for so long is silent, and its running group degraded."""
    fail_after_s: Annotated[float, Field(ge=2, le=86_400)] = 60.0
    """A running group fails when a worker was silent for so long."""
    ready_within_s: Annotated[float, Field(ge=2, le=86_400)] = 60.0
    """All workers must be ready to start within this time."""
    grace_s: Annotated[float, Field(ge=0, le=3_600)] = 25.0
    """Between SIGTERM and SIGKILL when the group is stopped."""


class NewGroup(Shape):
    """A group to create."""

    name: GroupName
    settings: GroupSettings = GroupSettings()


class Failure(Shape):
    """Why a group failed: the first worker that did, and the verdict over its log where there is one.

    ``text`` is English. ``code`` names the case for translations, where it is one of the server's, and
    ``values`` fill it in.
    """

    worker: str | None
    text: str
    code: str = ""
    values: dict[str, str] = {}
    exit_code: int | None = None
    verdict: str = ""
    log: bool = False
    """Whether there is a log to read."""


class ProblemShape(Shape):
    """A :class:`~platform_launch.procguard.ranks.Problem`."""

    code: str
    text: str
    hint: str = ""
    values: dict[str, str] = {}


class PlaceShape(Shape):
    """One row of the rank table, and what its worker will be started with."""

    worker: str
    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    environment: dict[str, str]


class RankPreview(Shape):
    """The rank table as it would be. With ``problems`` the group cannot start."""

    places: list[PlaceShape]
    idle: list[str]
    problems: list[ProblemShape]
    notes: list[ProblemShape]


class GroupShape(Shape):
    """A group as it is."""

    name: str
    settings: GroupSettings
    phase: Phase
    phase_since: datetime
    generation: int
    restarts_used: int
    workers: list[str]
    silent: list[str]
    """Workers whose heartbeat is overdue."""
    waiting_for: list[str]
    """While preparing: the workers that are not ready. While stopping: those that still run."""
    failure: Failure | None
    started_at: datetime | None
    ended_at: datetime | None


class WorkerShape(Shape):
    """A worker as it is. ``heartbeat_age_s`` None: none since this server was started."""

    worker: str
    node: str
    number: int
    group: str | None
    state: State
    silent: bool
    generation: int
    rank: int | None
    local_rank: int | None
    restarts: int
    exit_code: int | None
    asked: bool
    """Whether its end was an order: then the exit code is no failure."""
    reason: str
    heartbeat_age_s: float | None
    gpus: list[Gpu]
    pid: int | None
    hostname: str
    limited_to: list[str] | None
    """The commands its agent is limited to; None: any."""


class Changed(Shape):
    """The answer to start, stop and restart. ``changed`` False: it was so already."""

    group: GroupShape
    changed: bool


class Event(Shape):
    """An entry of the audit log: what changed, when, and who did it (``server``: nobody asked)."""

    id: int
    at: datetime
    who: str
    action: str
    object: str
    detail: str


class Refusal(Shape):
    """Every error of the API: what was wrong and what to do. ``problems`` where a group cannot start."""

    error: str
    hint: str = ""
    problems: list[ProblemShape] = []


class Login(Shape):
    """Name and password of somebody who logs in."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    password: Annotated[str, StringConstraints(min_length=1, max_length=1_024)]


class Role(str, Enum):
    """What a person may do: look, or change as well."""

    VIEWER = "viewer"
    OPERATOR = "operator"


class Session(Shape):
    """The answer to a login: ``token`` goes into the Authorization header of what follows (``Bearer``)."""

    token: str
    name: str
    role: Role
    expires_at: datetime


class Me(Shape):
    """Who is logged in."""

    name: str
    role: Role


class Move(Shape):
    """Workers to move to a group; None takes them out of theirs."""

    workers: Annotated[list[Annotated[str, StringConstraints(max_length=80)]], Field(max_length=10_000)]
    group: GroupName | None


class LogMatch(Shape):
    """A line that holds what was searched for, by its number from 1 and the offset of its first byte."""

    line: int
    offset: int
    text: str


class LogWindow(Shape):
    """A part of a run's log. Offsets count the bytes its worker wrote, also those no longer kept.

    ``offset`` is where ``text`` begins: later than asked for where bytes were left out to keep the log within
    its limit. ``next_offset`` is where to go on, ``size`` the end. ``line`` is the number of the first line.
    ``matches`` is None when nothing was searched for; ``more`` tells that there are further ones.
    """

    worker: str
    generation: int
    generations: list[int]
    offset: int
    next_offset: int
    size: int
    line: int
    text: str
    matches: list[LogMatch] | None = None
    more: bool = False
