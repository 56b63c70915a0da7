"""What people see: the JSON of the API, which the web page uses as well."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from platform_launch.procguard.api.ranks import WorkerKind
from platform_launch.procguard.api.wire import (
    PLACE_VARIABLES,
    GpuReport,
    MachineReport,
    QuarantineReport,
    WorkerState,
)

GroupName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,62}[A-Za-z0-9])?$")]


USER_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9_.@-]{0,62}[A-Za-z0-9])?$"


def _not_of_the_rank(name: str) -> str:
    if name in PLACE_VARIABLES or name.startswith("PROCGUARD_"):
        raise ValueError(f"{name} is set by ProcGuard")
    return name


VariableName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"),
    AfterValidator(_not_of_the_rank),
]
VariableValue = Annotated[str, StringConstraints(max_length=4_000, pattern=r"^[^\x00]*$")]


class Shape(BaseModel):
    """A document of the API. What is sent in must hold nothing unknown: a typing error is not a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class GroupPhase(str, Enum):
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


class GroupSettings(Shape):
    """What a person sets of a group. The seed's defaults: World Size by the workers, port 29500, nccl."""

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
    fail_after_s: Annotated[float, Field(ge=2, le=86_400)] = 60.0
    """A running group fails when a worker was silent for so long."""
    ready_within_s: Annotated[float, Field(ge=2, le=86_400)] = 60.0
    """All workers must be ready to start within this time."""
    grace_s: Annotated[float, Field(ge=0, le=3_600)] = 25.0
    """Between SIGTERM and SIGKILL when the group is stopped."""
    owners: Annotated[
        list[Annotated[str, StringConstraints(pattern=USER_PATTERN)]], Field(max_length=64)
    ] = []
    """Who may change and start the group, beside admins. Empty: every operator."""


class NewGroup(Shape):
    """A group to create."""

    name: GroupName
    settings: GroupSettings = GroupSettings()
    like: GroupName | None = None
    """Take the settings of this group instead."""


class GroupFailure(Shape):
    """Why a group failed: the first worker that did, and the verdict over its log where there is one.

    ``text`` is English. ``code`` names the case for translations, where it is one of the server's, and
    ``values`` fill it in.
    """

    worker: str | None
    text: str
    code: str = ""
    values: dict[str, str] = {}
    run_number: int = 0
    generation: int = 0
    exit_code: int | None = None
    verdict: str = ""
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


class ProblemShape(Shape):
    """A :class:`~platform_launch.procguard.api.ranks.RankProblem`."""

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
    phase: GroupPhase
    phase_since: datetime
    run_number: int
    """Which run of this group it is, from 1; 0 before the first."""
    generation: int
    """What its workers' runs are counted by, also across groups; names their logs."""
    restarts_used: int
    workers: list[str]
    silent: list[str]
    """Workers whose heartbeat is overdue."""
    waiting_for: list[str]
    """While preparing: the workers that are not ready. While stopping: those that still run."""
    deadline: Deadline | None
    failure: GroupFailure | None
    previous_failure: GroupFailure | None
    """Why the run before failed, while the group starts again by itself and runs."""
    requested_by: str
    """Who asked for the newest run."""
    started_at: datetime | None
    ended_at: datetime | None


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
    asked: bool
    """Whether its end was an order: then the exit code is no failure."""
    reason: str
    verdict: str
    """What ``why`` makes of its log, where it failed."""
    heartbeat_age_s: float | None
    gpus: list[GpuReport]
    steps_per_s: float | None
    """From its output; None where it counts no steps there."""
    pid: int | None
    hostname: str
    limited_to: list[str] | None
    """The commands its agent is limited to; None: any."""


class RunShape(Shape):
    """A run of a group, in its history. ``restart``: which automatic restart it is, 0 for a person's start.

    ``outcome``: finished, failed or stopped; None while it is under way. ``command`` is rank 0's.
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


class PlacedWorker(Shape):
    """A worker and the ranks that it had in a run."""

    worker: str
    rank: int
    local_rank: int
    node_rank: int


class RunDetail(RunShape):
    """A run with the settings that it began with, and its rank table."""

    settings: GroupSettings
    places: list[PlacedWorker]


class NodeShape(Shape):
    """A node as it is: its agent, its machine and what its workers do."""

    node: str
    hostname: str
    version: str
    """Of its agent."""
    workers: list[str]
    counts: dict[WorkerStatus, int]
    groups: list[str]
    silent: bool
    heartbeat_age_s: float | None
    drained_by: str
    """Who wants nothing new started here; empty where nobody does."""
    quarantine: QuarantineReport | None
    """Why and until when no job should be put here, as its agent reads it in the quarantine file."""
    release_asked: bool
    """Whether its agent was told to end the quarantine and has not done so yet."""
    limited_to: list[str] | None
    machine: MachineReport | None
    gpus: list[GpuReport]


class Drain(Shape):
    """Whether nothing new is to start on a node."""

    drained: bool


class ChartKind(str, Enum):
    """What is measured."""

    WORKER = "workers"
    NODE = "nodes"
    GROUP = "groups"


class Chart(Shape):
    """Measurements: a value of each series for each time (seconds since 1970), None where there was none.

    Series: gpu, gpu_lowest and cpu in percent, gpu_memory and memory in GiB, steps a second.
    """

    times: list[float]
    series: dict[str, list[float | None]]


class Changed(Shape):
    """The answer to start, stop and restart. ``changed`` False: it was so already."""

    group: GroupShape
    changed: bool


class AuditEvent(Shape):
    """An entry of the audit log: what changed, when, and who did it (``server``: nobody asked)."""

    id: int
    at: datetime
    who: str
    action: str
    object: str
    detail: str


class EventFilter(Shape):
    """Which entries of the audit log: ``on`` a group, node or user, by ``who``, of an action. Empty: all."""

    on: Annotated[str, StringConstraints(max_length=140)] = ""
    who: Annotated[str, StringConstraints(max_length=64)] = ""
    action: Annotated[str, StringConstraints(max_length=32)] = ""


class Refusal(Shape):
    """Every error of the API: what was wrong and what to do. ``problems`` where a group cannot start."""

    error: str
    hint: str = ""
    problems: list[ProblemShape] = []


class Login(Shape):
    """Name and password of somebody who logs in."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    password: Annotated[str, StringConstraints(min_length=1, max_length=1_024)]


class UserRole(str, Enum):
    """What a person may do: look, change as well, or also say who else logs in."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class Session(Shape):
    """The answer to a login: ``token`` goes into the Authorization header of what follows (``Bearer``)."""

    token: str
    name: str
    role: UserRole
    expires_at: datetime


class Me(Shape):
    """Who is logged in."""

    name: str
    role: UserRole


UserName = Annotated[str, StringConstraints(pattern=USER_PATTERN)]
NewPassword = Annotated[str, StringConstraints(min_length=8, max_length=1_024)]


class NewUser(Shape):
    """Somebody who is to log in."""

    name: UserName
    role: UserRole
    password: NewPassword


class UserChange(Shape):
    """Another role or password for a user, which ends the user's sessions. None: as before."""

    role: UserRole | None = None
    password: NewPassword | None = None


class UserShape(Shape):
    """Somebody who may log in."""

    name: str
    role: UserRole
    created_at: datetime


class PasswordChange(Shape):
    """One's own password."""

    current: Annotated[str, StringConstraints(min_length=1, max_length=1_024)]
    new: NewPassword


class NewToken(Shape):
    """A token for a script: what it may do, if its user still may, and for how many days."""

    label: Annotated[str, StringConstraints(min_length=1, max_length=64, strip_whitespace=True)]
    role: UserRole = UserRole.VIEWER
    days: Annotated[int, Field(ge=1, le=366)] = 30


class TokenShape(Shape):
    """A token of one's own. The token itself is told once, when it is made."""

    id: str
    label: str
    role: UserRole
    created_at: datetime
    ends_at: datetime


class MadeToken(TokenShape):
    """A new token: ``token`` goes into the Authorization header (``Bearer``), and is told only now."""

    token: str


class Move(Shape):
    """Workers to move to a group; None takes them out of theirs."""

    workers: Annotated[list[Annotated[str, StringConstraints(max_length=80)]], Field(max_length=10_000)]
    group: GroupName | None


class LogMatch(Shape):
    """A line that holds what was searched for, by its number from 1 and the offset of its first byte."""

    line: int
    offset: int
    text: str
    match: bool = True
    """False: it only stands beside one that was searched for."""


class LogRun(Shape):
    """The name of a worker's generation: a run of a group."""

    generation: int
    group: str
    number: int


class LogWindow(Shape):
    """A part of a run's log. Offsets count the bytes its worker wrote, also those no longer kept.

    ``offset`` is where ``text`` begins: later than asked for where bytes were left out to keep the log within
    its limit. ``next_offset`` is where to go on, ``size`` the end. ``line`` is the number of the first line.
    ``matches`` is None when nothing was searched for; ``more`` tells that there are further ones.
    """

    worker: str
    generation: int
    generations: list[int]
    runs: list[LogRun] = []
    """What those generations were called in their groups, where that is known."""
    offset: int
    next_offset: int
    size: int
    line: int
    text: str
    matches: list[LogMatch] | None = None
    more: bool = False


class MergedLogLine(Shape):
    """A line of one rank's log: the offset of its first byte there, and when the server had it."""

    rank: int
    worker: str
    at: datetime
    offset: int
    text: str
    match: bool = True
    """False: it only stands beside one that was searched for."""
    place: str
    """Its place among all lines, for ``before`` and ``after``."""


class MergedLogPage(Shape):
    """Lines of all ranks of a run, in the order in which the server had them.

    ``before`` and ``after`` are where to go on, None where there is nothing earlier; ``more``: what comes
    after can be read at once. Lines of the last two seconds are left out while the run goes on: others may
    come before them.
    """

    group: str
    run: int
    generation: int
    ended: bool
    lines: list[MergedLogLine]
    before: str | None
    after: str | None
    more: bool
    target: str | None = None
    """The place of the line that was asked for."""
