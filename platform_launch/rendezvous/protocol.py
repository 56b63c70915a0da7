"""What lies in the store of a rendezvous, and under which key.

hello                  which protocol node 0 speaks, for launchers of any version         coordinator
announcement           this is a rendezvous, of this purpose and round                    coordinator
now                    the coordinator's heartbeat, and how often the next three changed  coordinator
state                  what the purpose makes of it so far                                coordinator
members                who holds which place                                              coordinator
requests               what is asked of whom                                              coordinator
join/SLOT              who wants to take part                                             participant
notice/SLOT            what became of that                                                coordinator
heartbeat/SLOT         a sign of life; the Hello of a node that speaks another protocol   participant
value/KIND/SLOT        something a node tells the others, and may tell anew               participant
requests/SLOT          what a node asks of others                                         participant
answer/REQUEST/SLOT    an answer                                                          participant

A slot is a place in the store; a node's rank is its usual slot. The slots beyond are for spares, for a node
that comes back before its old entry is forgotten, and for strangers until they are turned away.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.messages import MIB, Message

HELLO, ANNOUNCEMENT, NOW, STATE = "hello", "announcement", "now", "state"
MEMBERS, REQUESTS = "members", "requests"


@dataclass(frozen=True)
class Hello(Message):
    """What launchers of different versions say to each other: that they are. It never changes, nor its place.

    ``protocol`` is the name of that protocol (``Purpose.protocol``), ``version`` that of the package.
    """

    protocol: str
    version: str
    node_rank: int
    place: str
    job_id: str | None

    @property
    def build(self) -> str:
        """What to call such a launcher."""
        return f"version {self.version} (protocol {self.protocol})"


@dataclass(frozen=True)
class Announcement(Message):
    """What listens here: ``identity`` is that of node 0's launcher, ``nonce`` is drawn by each coordinator.

    ``round`` is that of the first coordinator, where this one goes on in the place of one that was lost.
    ``job`` tells the rendezvous of one job from that of another, where nodes look for it on several hosts.
    """

    purpose: str
    identity: str
    place: str
    nonce: str
    nnodes: int
    slots: int
    round: str
    job: str = ""


@dataclass(frozen=True)
class Now(Message):
    """The coordinator lives, and the entries it writes are of these editions."""

    count: int
    state: int
    members: int
    requests: int


@dataclass(frozen=True)
class Join(Message):
    """A node that wants to take part. ``details`` are what the purpose needs of it.

    A spare takes part without a rank, and may be given one later. ``session`` is drawn anew each time a node
    joins: the same launcher may come again, when its connection or its helper process was lost.
    """

    node: Fingerprint
    session: str
    details: Message | None = None
    spare: bool = False


@dataclass(frozen=True)
class NodeHeartbeat(Message):
    """A node lives. ``written`` grows with all else it writes; ``left``: this is the last heartbeat."""

    session: str
    count: int
    written: int
    left: bool = False


class RejectionKind(str, Enum):
    """Why a node takes no part."""

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
    """A node is turned away: ``place`` is its own, ``by`` that of node 0 or of who holds its rank.

    ``theirs`` and ``ours`` are what does not fit: job ids, purposes, launchers, or numbers of nodes.
    """

    kind: RejectionKind
    node_rank: int
    place: str
    by: str
    theirs: str = ""
    ours: str = ""


@dataclass(frozen=True)
class JoinNotice(Message):
    """What the coordinator says to one node: it takes part, with a rank or as a spare, or it does not.

    ``started``: it is one of those who began together.
    """

    identity: str
    node_rank: int | None = None
    started: bool = False
    rejection: Rejection | None = None


@dataclass(frozen=True)
class Seat(Message):
    """Who holds a slot; ``node_rank`` is None for a spare."""

    slot: int
    node_rank: int | None
    identity: str
    place: str


@dataclass(frozen=True)
class Members(Message):
    """All who take part."""

    most_bytes: ClassVar[int] = MIB

    seats: tuple[Seat, ...]


@dataclass(frozen=True)
class NodeRequest(Message):
    """What a node asks of some ranks, or of everybody else (None). ``number`` is of its own counting."""

    number: int
    to: tuple[int, ...] | None
    limit_s: float
    body: Message


@dataclass(frozen=True)
class NodeRequests(Message):
    """What a node asks at the moment."""

    most_bytes: ClassVar[int] = 256 * 1024

    requests: tuple[NodeRequest, ...]


@dataclass(frozen=True)
class OpenRequest(Message):
    """A request on its way: ``slot`` and ``number`` say whose it is, ``to`` which ranks shall answer."""

    slot: int
    number: int
    to: tuple[int, ...] | None
    body: Message

    def is_for(self, seat: Seat) -> bool:
        """Tell whether somebody shall answer: not who asks, nor spares, who know nothing of the training."""
        rank = seat.node_rank
        return rank is not None and seat.slot != self.slot and (self.to is None or rank in self.to)

    def answer_key(self, slot: int) -> str:
        """Return where the answer of a slot lies."""
        return f"answer/{self.slot}-{self.number}/{slot}"


@dataclass(frozen=True)
class Requests(Message):
    """All requests that wait for answers."""

    most_bytes: ClassVar[int] = MIB

    open: tuple[OpenRequest, ...]


@dataclass(frozen=True)
class RequestAnswer(Message):
    """What a node answers."""

    most_bytes: ClassVar[int] = MIB

    body: Message
