"""The messages of a rendezvous: what a node and node 0 send each other over one connection.

Each is one line. First come a Hello of the node and a Welcome of node 0, which never change and are never
sealed: launchers of different versions, jobs and secrets recognise each other by them. All further lines are
sealed (``lines``).

    node → node 0    Join, Beat, Publish, Ask, RequestAnswer, Fetch, Leave
    node 0 → node    JoinNotice, Beat, Publish, OpenRequest, Recipients, Answered, Fetched
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import ClassVar

from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.messages import Message
from platform_launch.values import dataclass

# The overhead of a message around its body.
ENVELOPE_BYTES = 1024


@dataclass(frozen=True)
class Hello(Message):
    """The first line of a connection: who calls, and for what. Its fields never change.

    ``protocol`` names the shape of all messages (``Purpose.protocol``), ``version`` is the package's.
    ``mark`` distinguishes the rendezvous from others on the same hosts, and ``job`` the job from others that
    use the same ports (``Fingerprint.job``). ``nonce`` is 32 hexadecimal digits. ``sealed``: the caller has a
    secret. ``peeks``: the caller reads the published state and does not join.
    """

    most_bytes: ClassVar[int] = 1024

    protocol: str
    version: str
    purpose: str
    node_rank: int
    place: str
    job_id: str | None
    mark: str
    nonce: str
    sealed: bool
    peeks: bool = False
    job: str = ""

    @property
    def build(self) -> str:
        """A name for such a launcher in messages."""
        return f"version {self.version} (protocol {self.protocol})"


@dataclass(frozen=True)
class Welcome(Message):
    """The answer of node 0. Its fields never change.

    ``identity`` is that of node 0's launcher, ``round`` is drawn by each coordinator. ``proof`` shows that
    node 0 has the secret; it is empty if node 0 has none.
    """

    most_bytes: ClassVar[int] = 2048

    protocol: str
    version: str
    purpose: str
    identity: str
    place: str
    job_id: str | None
    mark: str
    nonce: str
    nnodes: int
    round: str
    proof: str = ""
    job: str = ""

    @property
    def build(self) -> str:
        """A name for such a launcher in messages."""
        return f"version {self.version} (protocol {self.protocol})"


@dataclass(frozen=True)
class Join(Message):
    """A node takes part. ``details`` are what the purpose needs of it.

    A spare takes part without a rank, and may be given one later. ``session`` is a secret of this node's:
    with it and a higher ``connection`` it resumes its membership after its connection broke.
    """

    node: Fingerprint
    session: str
    connection: int
    details: Message | None = None
    spare: bool = False


@dataclass(frozen=True)
class Beat(Message):
    """A sign of life. ``count`` grows with each.

    A node sends its wall clock, ``sent_s``; node 0 sends back the newest one it received (``echo_s``), how
    long ago that was (``held_s``) and its own wall clock (``sent_s``). From these the node computes
    ``offset_s``, its clock minus that of node 0, and ``error_s``, the maximum error; it sends both with its
    next beat.
    """

    count: int
    sent_s: float
    echo_s: float = 0.0
    held_s: float = 0.0
    offset_s: float = 0.0
    error_s: float | None = None


@dataclass(frozen=True)
class Publish(Message):
    """A value for all nodes. It replaces the last one of its kind."""

    body: Message


@dataclass(frozen=True)
class Ask(Message):
    """A question to some ranks, or to everybody else (None). ``number`` is the asking node's own count."""

    number: int
    to: tuple[int, ...] | None
    limit_s: float
    body: Message


@dataclass(frozen=True)
class OpenRequest(Message):
    """A question that node 0 passes on; ``asker`` and ``number`` identify it."""

    asker: int
    number: int
    body: Message


@dataclass(frozen=True)
class RequestAnswer(Message):
    """The answer to an OpenRequest."""

    asker: int
    number: int
    body: Message


@dataclass(frozen=True)
class Fetch(Message):
    """Asks for the published values of a kind, of one rank or of all (None)."""

    number: int
    kind: str
    rank: int | None = None


@dataclass(frozen=True)
class Leave(Message):
    """This node leaves the rendezvous for good."""


class RejectionKind(str, Enum):
    """Why a node cannot take part."""

    OTHER_JOB = "other_job"
    OTHER_PURPOSE = "other_purpose"
    OTHER_PROTOCOL = "other_protocol"
    RANK_OUT_OF_RANGE = "rank_out_of_range"
    RANK_TAKEN = "rank_taken"
    REPLACED = "replaced"
    NO_SECRET = "no_secret"  # noqa: S105 - the name of a kind, as the next two
    OTHER_SECRET = "other_secret"  # noqa: S105
    COORDINATOR_WITHOUT_SECRET = "coordinator_without_secret"  # noqa: S105


@dataclass(frozen=True)
class Rejection(Message):
    """A node is rejected. ``place`` is its own, ``by`` that of node 0 or of the holder of its rank.

    ``theirs`` and ``ours`` are the values that differ: job ids, purposes, launchers, or numbers of nodes.
    """

    kind: RejectionKind
    node_rank: int
    place: str
    by: str
    theirs: str = ""
    ours: str = ""


@dataclass(frozen=True)
class MemberInfo(Message):
    """A member as every node knows it. ``number`` is node 0's for it; ``node_rank`` is None for a spare."""

    number: int
    node_rank: int | None
    identity: str
    place: str


@dataclass(frozen=True)
class JoinNotice(Message):
    """The answer to a Join: the node takes part, or is rejected. ``started``: it is part of the run."""

    member: MemberInfo | None = None
    started: bool = False
    rejection: Rejection | None = None


@dataclass(frozen=True)
class Recipients(Message):
    """The recipients of a question."""

    number: int
    seats: tuple[MemberInfo, ...]


@dataclass(frozen=True)
class Answered(Message):
    """The answer of one node to a question."""

    number: int
    member: MemberInfo
    body: Message


@dataclass(frozen=True)
class Fetched(Message):
    """The answer to a Fetch: the values, by rank."""

    number: int
    values: Mapping[int, Message]


FIRST_LINES = (Hello, Welcome)
SEALED_LINES = (
    *(Join, Beat, Publish, Ask, RequestAnswer, Fetch, Leave),
    *(JoinNotice, OpenRequest, Recipients, Answered, Fetched),
)
