"""A node's side of a rendezvous: joins, sends heartbeats, receives and publishes."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from queue import Empty

from platform_launch import __version__
from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.client import Client, CoordinatorReplaced, Opened, hand_in, peek
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.liveness import Liveness
from platform_launch.rendezvous.loop import ConnectionSilentError, event_loop
from platform_launch.rendezvous.messages import InvalidMessageError, M, Message, encode
from platform_launch.rendezvous.protocol import (
    Answered,
    Ask,
    Fetch,
    Fetched,
    Hello,
    Join,
    JoinNotice,
    MemberInfo,
    OpenRequest,
    Publish,
    Recipients,
    Rejection,
    RejectionKind,
    RequestAnswer,
)
from platform_launch.rendezvous.purpose import Purpose
from platform_launch.rendezvous.rejection import launch_error
from platform_launch.text import Phrase

_LONGEST_NAME = 100
_ANSWER_LIMIT_S = 10.0
_PAUSE_S = 0.02
_MOST_REQUESTS = 64


class NoRendezvousError(Exception):
    """The peer is no rendezvous of this kind; the message names it. Try again."""


class CoordinatorReplacedError(Exception):
    """Node 0 answers, but with another rendezvous."""


class RejectedError(Exception):
    """This node cannot take part."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(launch_error(rejection).message)
        self.rejection = rejection


def hello_of(
    me: Fingerprint, purpose: Purpose, secret: Secret | None, mark: str, *, peeks: bool = False
) -> Hello:
    """Return how a node presents itself in its first line; the nonce is drawn for each connection."""
    return Hello(
        purpose.protocol,
        __version__,
        purpose.name,
        me.node_rank,
        me.place[:_LONGEST_NAME],
        me.job_id[:_LONGEST_NAME] if me.job_id else None,
        mark,
        "",
        secret is not None,
        peeks,
        me.job,
    )


@dataclass
class PendingRequest:
    """A question to other nodes. ``answers`` grows with each step of this node.

    ``recipients`` is None until node 0 has passed the question on.
    """

    number: int
    until: float
    recipients: tuple[MemberInfo, ...] | None = None
    answers: dict[MemberInfo, Message] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether all have answered, or time is up."""
        complete = self.recipients is not None and len(self.answers) == len(self.recipients)
        return complete or time.monotonic() >= self.until

    @property
    def silent(self) -> tuple[MemberInfo, ...]:
        """The recipients that have not answered."""
        return tuple(member for member in self.recipients or () if member not in self.answers)


class NodeSession:
    """Proves that a node is the one that joined before: a token that only it and node 0 know."""

    def __init__(self) -> None:
        self.token = os.urandom(16).hex()
        self._connections = count(1)

    def next_connection(self) -> int:
        """Return the number of a new connection; the highest counts."""
        return next(self._connections)


class Participant:
    """One node, over a connection that was opened to node 0 (``client.open_all``).

    After :meth:`join`, call :meth:`step` at least once a second, from one thread; heartbeats are sent
    automatically. ``membership`` is None until node 0 has admitted this node. ``started`` is whether the run
    started with this node (``Coordinator.start``). ``wake()`` is called from another thread when there is
    something to do. With the ``session`` of an earlier participant, this one resumes its membership.

    Raises RejectedError if node 0 waits for something else, or its job is another.
    """

    def __init__(
        self,
        opened: Opened,
        me: Fingerprint,
        *,
        purpose: Purpose,
        secret: Secret | None = None,
        spare: bool = False,
        details: Message | None = None,
        wake: Callable[[], None] = lambda: None,
        session: NodeSession | None = None,
    ) -> None:
        self._session = session or NodeSession()
        if details is not None:
            purpose.require(details)
        self._opened = opened
        self.welcome = opened.welcome
        self._me = me
        self._purpose = purpose
        self._secret = secret
        self._details, self._spare, self._wake = details, spare, wake
        self._client: Client | None = None
        self._states: dict[type[Message], Message] = {}
        self._inquiries: dict[int, PendingRequest] = {}
        self._requests: deque[OpenRequest] = deque(maxlen=_MOST_REQUESTS)
        self._seen_requests: deque[tuple[int, int]] = deque(maxlen=_MOST_REQUESTS)
        self._answers: dict[tuple[int, int], RequestAnswer] = {}
        self._fetched: dict[int, Fetched] = {}
        self._number = 0
        self._liveness: Liveness[str] = Liveness()
        self.membership: MemberInfo | None = None
        self.started = False
        misfit = _misfit(opened)
        if misfit is not None:
            self.close()
            raise RejectedError(self._rejection(*misfit))

    @property
    def coordinator_silent_s(self) -> float:
        """How long the coordinator has been silent."""
        return self._liveness.silent_s("coordinator")

    @property
    def coordinator_closed_s(self) -> float:
        """How long nothing has listened at node 0's address, although its machine answers."""
        since = self._client.refused_since if self._client is not None else None
        return 0.0 if since is None else time.monotonic() - since

    @property
    def coordinator_ended_s(self) -> float:
        """The same if the connection was closed in order, which a network hardly does."""
        return 0.0 if self._client is None or self._client.ended_at is None else self.coordinator_closed_s

    @property
    def coordinator_is_stopped(self) -> bool:
        """Whether the machine of a silent node 0 answers, so that its launcher was stopped or is stuck."""
        return self._client is not None and self._client.machine_answers

    @property
    def clock(self) -> tuple[float, float] | None:
        """This node's clock minus that of node 0, and the maximum error; None if unknown."""
        client = self._client
        return None if client is None or client.error_s is None else (client.offset_s, client.error_s)

    def join(self) -> None:
        """Join. Raises RejectedError, which is reported to node 0 too."""
        mine, theirs = self._opened.hello, self.welcome
        misfit = None
        if not self._opened.trusted:
            kind = RejectionKind.OTHER_SECRET
            if self._secret is None:
                kind = RejectionKind.NO_SECRET
            elif not theirs.proof:
                kind = RejectionKind.COORDINATOR_WITHOUT_SECRET
            misfit = self._rejection(kind)
        elif theirs.protocol != mine.protocol:
            misfit = self._rejection(RejectionKind.OTHER_PROTOCOL, mine.build, theirs.build)
        if misfit is not None:
            event_loop().call(hand_in(self._opened), _ANSWER_LIMIT_S)
            raise RejectedError(misfit)
        join = Join(
            self._me, self._session.token, self._session.next_connection(), self._details, self._spare
        )
        connection = self._session.next_connection
        self._client = Client(
            event_loop(), self._opened, self._purpose, self._secret, join, connection, self._wake
        )

    def step(self) -> None:
        """Process what has arrived. Raises RejectedError and CoordinatorReplacedError."""
        assert self._client is not None
        self._liveness.observe({"coordinator": self._client.coordinator_count}, time.monotonic())
        while True:
            try:
                message = self._client.events.get_nowait()
            except Empty:
                break
            self._receive(message)
        self._inquiries = {number: one for number, one in self._inquiries.items() if not one.done}

    def state(self, kind: type[M]) -> M | None:
        """Return what the coordinator published last of a kind, None if it has not."""
        found = self._states.get(kind)
        return found if isinstance(found, kind) else None

    def peek(self, kind: type[M]) -> M | None:
        """Return what the coordinator has published, and disconnect. For a Hello that ``peeks``."""
        if not self._opened.trusted or self.welcome.protocol != self._opened.hello.protocol:
            self.close()
            return None
        found = event_loop().call(peek(self._opened, self._purpose), _ANSWER_LIMIT_S)
        return next((one for one in found if isinstance(one, kind)), None)

    def publish(self, value: Message) -> None:
        """Publish a value for nodes that fetch its kind. It replaces the last one of its kind."""
        self._purpose.require(value)
        assert self._client is not None
        self._client.publish(value)

    def values(self, kind: type[M]) -> dict[int, M]:
        """Return the values of a kind that the nodes have published, by rank. Raises ConnectionLostError."""
        return self._fetch(kind, None)

    def value_of(self, rank: int, kind: type[M]) -> M | None:
        """Return the value of a kind that one rank has published. Raises ConnectionLostError."""
        return self._fetch(kind, rank).get(rank)

    def query(self, body: Message, *, to: Sequence[int] | None = None, limit_s: float) -> PendingRequest:
        """Send a question to some ranks, or to all others. Later steps collect the answers."""
        self._purpose.require(body)
        assert self._client is not None
        number = self._next_number()
        pending = self._inquiries[number] = PendingRequest(number, time.monotonic() + limit_s)
        self._client.send(Ask(number, None if to is None else tuple(to), limit_s, body))
        return pending

    def requests(self) -> list[OpenRequest]:
        """Return the questions of others to this node, each once."""
        found = list(self._requests)
        self._requests.clear()
        return found

    def answer(self, request: OpenRequest, body: Message) -> None:
        """Answer a question. Raises InvalidMessageError if the answer is too long."""
        self._purpose.require(body)
        size = len(encode(body))
        if size > body.most_bytes:
            raise InvalidMessageError(f"an answer of {size} bytes: expected at most {body.most_bytes}")
        answer = RequestAnswer(request.asker, request.number, body)
        self._answers[request.asker, request.number] = answer
        for old in self._answers.keys() - set(self._seen_requests):
            del self._answers[old]
        assert self._client is not None
        self._client.send(answer)

    def leave(self) -> None:
        """Leave the rendezvous for good, and disconnect."""
        if self._client is not None:
            self._client.leave()

    def close(self) -> None:
        """Disconnect without leaving."""
        if self._client is not None:
            self._client.close()
        else:
            event_loop().post(self._opened.writer.close)

    def _receive(self, message: Message | CoordinatorReplaced) -> None:
        match message:
            case CoordinatorReplaced():
                raise CoordinatorReplacedError
            case JoinNotice(_, _, rejection) if rejection is not None:
                raise RejectedError(rejection)
            case JoinNotice(member, started, _):
                self.membership, self.started = member, started
            case Publish(body):
                self._states[type(body)] = body
            case OpenRequest(asker, number, _):
                answered = self._answers.get((asker, number))
                if answered is not None and self._client is not None:
                    self._client.send(answered)  # it was lost on the way
                elif (asker, number) not in self._seen_requests:
                    self._seen_requests.append((asker, number))
                    self._requests.append(message)
            case Recipients(number, seats) if number in self._inquiries:
                self._inquiries[number].recipients = seats
            case Answered(number, member, body) if number in self._inquiries:
                self._inquiries[number].answers[member] = body
            case Fetched(number, _):
                self._fetched[number] = message

    def _fetch(self, kind: type[M], rank: int | None) -> dict[int, M]:
        assert self._client is not None
        number, deadline = self._next_number(), time.monotonic() + _ANSWER_LIMIT_S
        self._client.send(Fetch(number, kind.__name__, rank))
        while number not in self._fetched:
            if time.monotonic() >= deadline:
                raise ConnectionSilentError(_ANSWER_LIMIT_S)
            time.sleep(_PAUSE_S)
            self.step()
        values = self._fetched.pop(number).values
        return {one: value for one, value in values.items() if isinstance(value, kind)}

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _rejection(self, kind: RejectionKind, theirs: str = "", ours: str = "") -> Rejection:
        return Rejection(kind, self._me.node_rank, self._me.place, self.welcome.place, theirs, ours)


def _misfit(opened: Opened) -> tuple[RejectionKind, str, str] | None:
    """Return why this node cannot join the rendezvous that answers, regardless of version and secret."""
    mine, theirs = opened.hello, opened.welcome
    if theirs.purpose != mine.purpose:
        return RejectionKind.OTHER_PURPOSE, mine.purpose, theirs.purpose
    if theirs.mark != mine.mark or (mine.job_id and theirs.job_id and mine.job_id != theirs.job_id):
        return RejectionKind.OTHER_JOB, mine.job_id or "", theirs.job_id or ""
    return None


__all__ = ["NoRendezvousError", "Participant", "PendingRequest", "Phrase", "RejectedError", "hello_of"]
