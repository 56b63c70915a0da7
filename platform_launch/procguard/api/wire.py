"""The messages between agents and the server. Level-triggered: every message has the whole state.

The agent sends a :class:`Heartbeat` every few seconds, and at once after a change; the answer has a
:class:`WorkerOrder` for each of its workers. An order states a desired state: it is repeated until it is
replaced, so none is lost, and it carries its generation, so none is carried out twice. In an inspection, an
agent reports about the ranks of a worker, and people see the whole group.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import Enum
from typing import Annotated, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from platform_launch.health.quarantine import LAST_MOMENT
from platform_launch.observe.snapshot import RankSnapshot
from platform_launch.procguard.api.shapes import Shape
from platform_launch.sentences import Sentence
from platform_launch.why.answer.verdict import Verdict

NODE_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,62}[A-Za-z0-9])?$"
MAX_WORKERS_PER_NODE = 64
MAX_LOG_CHUNK = 256 * 1024
"""Bytes of log per message."""

JOIN_TOKEN = "PROCGUARD_JOIN_TOKEN"  # noqa: S105 - a variable's name
"""The variable with the join token, for the server and its agents."""

NodeName = Annotated[str, StringConstraints(pattern=NODE_PATTERN)]


def _storable(text: str) -> str:
    """Replace NUL, which PostgreSQL cannot store; a program's output may contain it."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


Question = Annotated[str, StringConstraints(min_length=8, max_length=64, pattern=r"^[!-~]*$")]
Instance = Annotated[str, StringConstraints(min_length=8, max_length=64, pattern=r"^[!-~]*$")]
LONGEST_TEXT = 4_000
Text = Annotated[str, StringConstraints(max_length=LONGEST_TEXT), AfterValidator(_storable)]
ShortText = Annotated[str, StringConstraints(max_length=400), AfterValidator(_storable)]
LongText = Annotated[str, StringConstraints(max_length=8_000), AfterValidator(_storable)]
Label = Annotated[str, StringConstraints(pattern=NODE_PATTERN)]
"""A label of a node, for people and for the queue: ``h100``, ``rack-7``."""
Number = Annotated[int, Field(ge=0, lt=MAX_WORKERS_PER_NODE)]
Generation = Annotated[int, Field(ge=0, lt=2**31)]
Moment = Annotated[float, Field(ge=0, le=LAST_MOMENT)]
Code = Annotated[int, Field(ge=-(2**31), lt=2**31)]


_Value = TypeVar("_Value")


def _if_readable(value: object, read: ValidatorFunctionWrapHandler) -> object:
    """Return None for what this version cannot read: the English text says the same, and the message is
    accepted.
    """
    try:
        return read(value)
    except ValidationError:
        return None


Readable = Annotated[_Value | None, WrapValidator(_if_readable)]


STALLED_S = 60.0
"""A run that usually writes every few seconds has stalled if it has written nothing for this long."""

LONGEST_VERDICT = 32_000
"""Limit in characters of JSON for a verdict and for a sentence."""


def _not_too_long(value: Sentence | Verdict) -> Sentence | Verdict:
    document = asdict(value) if isinstance(value, Verdict) else value.document()
    if len(json.dumps(document)) > LONGEST_VERDICT:
        raise ValueError(f"longer than {LONGEST_VERDICT} characters")
    return value


ReportedSentence = Annotated[Sentence, AfterValidator(_not_too_long)]
ReportedVerdict = Annotated[Verdict, AfterValidator(_not_too_long)]


class WireMessage(BaseModel):
    """Unknown fields are ignored, so that a newer agent can talk to an older server."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class JoinRequest(WireMessage):
    """A node asks to join: sent once with the join token, answered with :class:`JoinAnswer`.

    ``instance`` is unique for every installation (state folder) of an agent. ``allowed`` are the commands the
    agent is limited to, None for any; ``command`` is for groups that set none.
    """

    node: NodeName
    instance: Instance
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS_PER_NODE)]
    labels: Annotated[tuple[Label, ...], Field(max_length=32)] = ()
    hostname: ShortText = ""
    addresses: Annotated[tuple[ShortText, ...], Field(max_length=32)] = ()
    version: ShortText = ""
    command: Annotated[tuple[Text, ...], Field(max_length=256)] = ()
    allowed: Annotated[tuple[Text, ...], Field(max_length=64)] | None = None
    credential: Annotated[str, StringConstraints(max_length=100)] = ""
    """The credential of the last join: only its holder may replace an agent that is alive."""


class JoinAnswer(WireMessage):
    """The agent's own credential, for the Authorization header of all later requests (``Bearer``)."""

    credential: str
    heartbeat_s: float


PLACE_VARIABLES = frozenset(
    {
        "BACKEND",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NNODES",
        "NODE_RANK",
        "RANK",
        "WORLD_SIZE",
    }
)
"""The rank variables: ``environment`` of an order has no others."""


class OrderAction(str, Enum):
    """The desired state of a worker."""

    STOP = "stop"
    """Nothing of this generation or an earlier one may run."""
    PREPARE = "prepare"
    """Nothing of an earlier generation may run; check whether this one could start, and report that."""
    RUN = "run"
    """This generation runs or has run: start it if it is prepared and has not started."""


class WorkerOrder(WireMessage):
    """The desired state of one worker. ``command`` to ``directory`` are set for PREPARE and RUN.

    ``variables`` are the group's own; ``directory`` is where to start, relative to the agent's, or empty.
    """

    action: OrderAction
    generation: Generation
    command: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    variables: dict[str, str] = {}
    directory: str = ""
    check_port: int | None = None
    """With PREPARE: the port on this node that rank 0 will listen on, which must be free."""
    grace_s: float = 25.0
    log_offset: int = 0
    """Bytes of this generation's log that the server has."""


class WorkerState(str, Enum):
    """The state of a worker, for the generation in its report."""

    IDLE = "idle"
    """Nothing runs."""
    READY = "ready"
    """Prepared to start."""
    REFUSED = "refused"
    """It cannot start here; see ``reason``."""
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"
    """It ran and ended: see ``exit_code``, ``ended_s_ago``, and ``stop_requested`` if it was stopped."""
    LOST = "lost"
    """It ran or was to run, and it is unknown how it ended: its agent's records or supervisor are gone."""


class GpuReport(WireMessage):
    """Use of one GPU that belongs to a worker."""

    index: Annotated[int, Field(ge=0, lt=1024)]
    name: ShortText = ""
    utilization_percent: Annotated[float, Field(ge=0, le=100)] | None = None
    memory_used_gib: Annotated[float, Field(ge=0)] | None = None
    memory_total_gib: Annotated[float, Field(ge=0)] | None = None


class MachineReport(WireMessage):
    """Use of a node, and free space on the disk where its commands start."""

    cpu_percent: Annotated[float, Field(ge=0, le=100)]
    memory_used_gib: Annotated[float, Field(ge=0)]
    memory_total_gib: Annotated[float, Field(ge=0)]
    disk_free_gib: Annotated[float, Field(ge=0)] | None = None
    disk_total_gib: Annotated[float, Field(ge=0)] | None = None


class ForeignGpuProcess(WireMessage):
    """A process that uses memory of a GPU and belongs to no run of this agent."""

    gpu: Annotated[int, Field(ge=0, lt=1024)]
    pid: Code
    user: Annotated[str, StringConstraints(max_length=64), AfterValidator(_storable)] = ""
    name: Annotated[str, StringConstraints(max_length=64), AfterValidator(_storable)] = ""
    memory_gib: Annotated[float, Field(ge=0)] | None = None


class WorkerReport(WireMessage):
    """One worker, as seen by its agent.

    ``ended_s_ago`` uses the agent's monotonic clock: wall clocks of nodes are never compared. ``verdict`` is
    the result of ``why`` for the log of a failed worker.
    """

    number: Number
    state: WorkerState
    generation: Generation = 0
    pid: Code | None = None
    exit_code: Code | None = None
    ended_s_ago: Annotated[float, Field(ge=0)] | None = None
    stop_requested: bool = False
    """Whether it was stopped by an order."""
    reason: Text = ""
    reason_sentence: Readable[ReportedSentence] = None
    """The source of ``reason``; None from agents of another version."""
    verdict: LongText = ""
    why: Readable[ReportedVerdict] = None
    """The source of ``verdict``; None as with ``reason_sentence``."""
    cause_line: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    """The line of its log that the verdict is based on, from 1."""
    log_bytes: Annotated[int, Field(ge=0, lt=2**53)] = 0
    gpus: Annotated[tuple[GpuReport, ...], Field(max_length=32)] = ()
    steps_per_s: Annotated[float, Field(ge=0)] | None = None
    slow_ranks: Annotated[tuple[ReportedSentence, ...], Field(max_length=8)] = ()
    """Slow ranks of the whole job, as reported by the launcher it runs."""
    moved_s_ago: Annotated[float, Field(ge=0)] | None = None
    """Time since its run wrote something; None if it does not usually write every few seconds."""


class QuarantineReport(WireMessage):
    """A node's entry in the quarantine file; times are seconds since 1970, ``until`` None: until released.

    ``name`` is the node's name there: that of its machine, or of the one where one of its GPUs was found.
    ``trouble`` is why the agent could not release it when asked to.
    """

    name: ShortText
    since: Moment
    until: Moment | None = None
    reason: Text = ""
    reason_sentence: Readable[ReportedSentence] = None
    """The source of ``reason``; None for free text."""
    job: ShortText = ""
    trouble: ShortText = ""


class Heartbeat(WireMessage):
    """A heartbeat. ``workers`` has every worker of the node, by number."""

    node: NodeName
    instance: Instance
    machine: MachineReport | None = None
    quarantine: QuarantineReport | None = None
    gpu_processes: Annotated[tuple[ForeignGpuProcess, ...], Field(max_length=64)] = ()
    workers: Annotated[tuple[WorkerReport, ...], Field(max_length=MAX_WORKERS_PER_NODE)]


class WorkerOrders(WireMessage):
    """The answer to a heartbeat: an order for each worker, by number, and when to send the next.

    ``questions`` go to workers whose ranks somebody is inspecting, until each is answered once.
    """

    orders: dict[int, WorkerOrder]
    heartbeat_s: float
    questions: dict[int, Question] = {}
    release: float | None = None
    """Start of the quarantine that the node should be released from (:class:`QuarantineReport`)."""


class LogReceived(WireMessage):
    """The answer to a chunk of log: how many bytes of this run's log the server has now.

    A chunk is the body of ``POST /api/v1/agent/log?number=&generation=&offset=``, the bytes as they were
    written. A chunk that overlaps existing bytes is cut; one that leaves a gap is dropped: continue from
    ``offset``.
    """

    offset: int


class RanksSeen(WireMessage):
    """What an agent reports about the ranks of a worker's run, in answer to a question in a heartbeat's
    answer.

    ``moved_s_ago``: since the last output or collective, None if unknown. ``world_size`` is that of the
    ranks' environment, 0 if none was found.
    """

    number: Number
    question: Question
    ranks: Annotated[tuple[RankSnapshot, ...], Field(max_length=MAX_WORKERS_PER_NODE)] = ()
    world_size: Annotated[int, Field(ge=0, lt=2**31)] = 0
    moved_s_ago: Annotated[float, Field(ge=0)] | None = None


class RanksReceived(WireMessage):
    """The answer to :class:`RanksSeen`; ``awaited`` is False if nobody waits for it any more."""

    awaited: bool


class InspectionSentences(Shape):
    """The lines of an :class:`Inspection` as codes and values, for programs and other languages."""

    finding: list[Sentence]
    lines: list[Sentence]


class Inspection(Shape):
    """What all ranks of a running group are doing.

    ``lines`` list the ranks, one line for all at the same place; ``finding`` says which rank blocks the
    others, and is empty while there is progress; ``sentences`` are their codes and values in the same order.
    ``stacks`` are those of all threads. Unless everything was requested, there are at most 20 lines, and
    stacks of the 64 ranks at the rarest places: ``more_places`` and ``more_ranks`` count the rest. ``silent``
    lists the workers whose agents did not answer.
    """

    group: str
    run: int
    ranks: int
    nodes: int
    moved_s_ago: float | None
    finding: list[str]
    lines: list[str]
    sentences: InspectionSentences
    stacks: list[str]
    more_places: int = 0
    more_ranks: int = 0
    silent: list[str]
