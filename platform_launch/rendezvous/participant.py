"""A node's side of a rendezvous: finds it, joins, stays alive in the eyes of the others, hears and tells."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from platform_launch.rendezvous import protocol
from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.handshake import Handshake, NoRendezvousError, RejectedError
from platform_launch.rendezvous.liveness import Liveness
from platform_launch.rendezvous.messages import InvalidMessageError, M, Message, encode
from platform_launch.rendezvous.protocol import (
    Join,
    JoinNotice,
    Members,
    NodeHeartbeat,
    NodeRequest,
    NodeRequests,
    Now,
    OpenRequest,
    RequestAnswer,
    Requests,
    Seat,
)
from platform_launch.rendezvous.purpose import Purpose
from platform_launch.rendezvous.store import Store
from platform_launch.text import Phrase

# A node that hears nothing of its entry for this long looks whether it still lies there.
_JOIN_AGAIN_S = 2.0


@dataclass
class PendingRequest:
    """A request that was made. ``answers`` grows with each heartbeat of this node.

    ``recipients`` are those who shall answer, None until node 0 has passed the request on.
    """

    number: int
    until: float
    request: NodeRequest
    recipients: tuple[Seat, ...] | None = None
    answers: dict[Seat, Message] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether all have answered, or time is up."""
        complete = self.recipients is not None and len(self.answers) == len(self.recipients)
        return complete or time.monotonic() >= self.until

    @property
    def silent(self) -> tuple[Seat, ...]:
        """Who has not answered."""
        return tuple(seat for seat in self.recipients or () if seat not in self.answers)


class Participant:
    """One node. Methods raise StoreError when the store is gone.

    ``announcement`` says whose rendezvous this is. After :meth:`join`, call :meth:`heartbeat` at least once a
    second; then ``seat`` is this node's place, None until it has one, and ``started`` tells whether it is one
    of those who began together (``Coordinator.start``).
    """

    def __init__(
        self,
        store: Store,
        me: Fingerprint,
        *,
        purpose: Purpose,
        secret: Secret | None = None,
        spare: bool = False,
        details: Message | None = None,
    ) -> None:
        if details is not None:
            purpose.require(details)
        self._store = store
        self._join = Join(me, os.urandom(8).hex(), details, spare)
        self._purpose = purpose
        self._handshake = Handshake(store, me, purpose, secret)
        self.announcement, self._seal = self._handshake.announcement, self._handshake.seal
        self._slot = -1
        self._count = 0
        self._written = 0
        self._written_at_join = 0.0
        self._notice = b""
        self._now = Now(0, 0, 0, 0)
        self._known = dict.fromkeys((protocol.STATE, protocol.MEMBERS, protocol.REQUESTS), 0)
        self._liveness: Liveness[str] = Liveness()
        self._state: Message | None = None
        self._members: tuple[Seat, ...] = ()
        self._inquiries: dict[int, PendingRequest] = {}
        self._open: dict[tuple[int, int], OpenRequest] = {}
        self._heard: set[tuple[int, int]] = set()
        self._published: dict[type[Message], tuple[Message, bool]] = {}
        self.seat: Seat | None = None
        self.started = False

    @property
    def members(self) -> tuple[Seat, ...]:
        """Who takes part; read where it is asked for, since for a thousand nodes it is long."""
        for entry in self._news(protocol.MEMBERS).values():
            if isinstance(entry, Members):
                self._members = entry.seats
        return self._members

    @property
    def coordinator_silent_s(self) -> float:
        """For how long the coordinator has given no sign of life, although its store answers."""
        return self._liveness.silent_s(protocol.NOW)

    def join(self) -> None:
        """Leave an entry in a free slot. Raises NoRendezvousError and RejectedError."""
        if self._handshake.foreign is not None:
            self._say_hello()
            raise RejectedError(self._handshake.foreign)
        mine = self._join
        for slot in self._usual_slots():
            key = f"join/{slot}"
            entry = self._seal.close(key, mine)
            held = self._store.replace(key, b"", entry)
            if held != entry and self._is_mine(key, held):
                held = self._store.replace(key, held, entry)  # this launcher's, of an earlier connection
            if held == entry:
                self._slot = slot
                break
        else:
            full = Phrase("the rendezvous of node 0 has no free place: too many nodes came to it")
            raise NoRendezvousError(full)
        self._written_at_join = time.monotonic()
        self._count = max(self._count, self._last_count())
        self._beat()
        if self._handshake.untrusted is not None:
            raise RejectedError(self._handshake.untrusted)

    def heartbeat(self) -> None:
        """Give a sign of life, and hear what is new. Raises RejectedError."""
        notice_key = f"notice/{self._slot}"
        now_data, notice = self._store.exchange(*self._next_beat(), [protocol.NOW, notice_key])
        self._now = self._open_entry(protocol.NOW, now_data, Now) or self._now
        moment = time.monotonic()
        self._liveness.observe({protocol.NOW: self._now.count}, moment)
        if notice and notice != self._notice:
            self._hear_notice(notice_key, notice)
        self._hear_news()
        if not (self.seat and notice) and moment - self._written_at_join >= _JOIN_AGAIN_S:
            self._written_at_join = moment
            self._restore()
        self._collect()

    def state(self, kind: type[M]) -> M | None:
        """Return what the coordinator published last, None while that is nothing of this kind."""
        return self._state if isinstance(self._state, kind) else None

    def peek(self, kind: type[M]) -> M | None:
        """Return what the coordinator has published, without taking part; None where that is not sealed."""
        return self._open_entry(protocol.STATE, self._store.read([protocol.STATE])[0], kind)

    def publish(self, value: Message, *, quietly: bool = False) -> None:
        """Tell something to all who ask for this kind; what was told of it before is replaced.

        ``quietly``: node 0 reads it when it needs it (``Coordinator.fetch``), and not each time it changes.
        """
        self._purpose.require(value)
        self._published[type(value)] = value, quietly
        key = f"value/{type(value).__name__}/{self._slot}"
        self._store.write(key, self._seal.close(key, value))
        if not quietly:
            self._announce_written()

    def values(self, kind: type[M]) -> dict[Seat, M]:
        """Return what the members have published of a kind."""
        members = self.members
        keys = [f"value/{kind.__name__}/{seat.slot}" for seat in members]
        found = zip(members, keys, self._store.read(keys), strict=True)
        values = {seat: self._open_entry(key, data, kind) for seat, key, data in found}
        return {seat: value for seat, value in values.items() if value is not None}

    def value_of(self, rank: int, kind: type[M]) -> M | None:
        """Return what the node of a rank has published of a kind."""
        # Node 0's is known without asking who all the others are, which every node would do at once.
        slot = 0 if rank == 0 else next((one.slot for one in self.members if one.node_rank == rank), None)
        if slot is None:
            return None
        key = f"value/{kind.__name__}/{slot}"
        return self._open_entry(key, self._store.read([key])[0], kind)

    def ask(self, body: Message, *, to: Sequence[int] | None = None, limit_s: float) -> PendingRequest:
        """Ask something of some ranks, or of everybody else. Later heartbeats collect the answers."""
        self._purpose.require(body)
        # By the clock, so that they grow also where this node's helper process was started anew.
        number = max(max(self._inquiries, default=0) + 1, int(time.time() * 1000))
        request = NodeRequest(number, None if to is None else tuple(to), limit_s, body)
        inquiry = PendingRequest(number, time.monotonic() + limit_s, request)
        self._inquiries[number] = inquiry
        self._write_requests()
        return inquiry

    def requests(self) -> list[OpenRequest]:
        """Return what others ask of this node, each request once."""
        fresh = {key: request for key, request in self._open.items() if key not in self._heard}
        self._heard |= fresh.keys()
        self._heard &= self._open.keys()
        return list(fresh.values())

    def answer(self, request: OpenRequest, body: Message) -> None:
        """Answer a request. One that is too long raises InvalidMessageError."""
        self._purpose.require(body)
        answer, key = RequestAnswer(body), request.answer_key(self._slot)
        size = len(encode(answer))
        if size > RequestAnswer.most_bytes:
            raise InvalidMessageError(
                f"an answer of {size} bytes: expected at most {RequestAnswer.most_bytes}"
            )
        self._store.write(key, self._seal.close(key, answer))

    def leave(self) -> None:
        """Say that this node needs the rendezvous no longer, and gives no more signs of life."""
        self._beat(left=True)

    def close(self) -> None:
        """Give up the connection."""
        self._store.close()

    def is_same_round(self, other: Participant) -> bool:
        """Tell whether both speak with one coordinator, or one of them with what went on in its place."""
        mine, its = self.announcement, other.announcement
        return (mine.identity, mine.round, mine.slots) == (its.identity, its.round, its.slots)

    def succeed(self, earlier: Participant) -> None:
        """Go on in the place of a participant of this node whose connection broke.

        What it has published it publishes again: the last of it may be lost. With another coordinator of
        the same round it joins anew, and what it asked is lost. Raises RejectedError and NoRendezvousError.
        """
        if self.announcement == earlier.announcement:
            self._join, self._slot = earlier._join, earlier._slot
            self._count, self._written = earlier._count, earlier._written
            self._inquiries, self._heard = earlier._inquiries, earlier._heard
            self.seat, self.started = earlier.seat, earlier.started
        else:
            self._inquiries = earlier._inquiries
            self.join()
        for value, quietly in earlier._published.values():
            self.publish(value, quietly=quietly)

    def _say_hello(self) -> None:
        """Let node 0 know, where its heartbeats are expected, who came and cannot take part."""
        hello = self._handshake.hello
        for slot in self._usual_slots():
            if self._store.replace(f"heartbeat/{slot}", b"", hello) == hello:
                break

    def _usual_slots(self) -> list[int]:
        rank, nnodes = self._join.node.node_rank, self.announcement.nnodes
        reserve = list(range(nnodes, self.announcement.slots))
        return [rank, *reserve] if not self._join.spare and 0 <= rank < nnodes else reserve

    def _is_mine(self, key: str, held: bytes) -> bool:
        found = self._open_entry(key, held, Join)
        return found is not None and found.node.identity == self._join.node.identity

    def _last_count(self) -> int:
        """Return the count of an earlier connection of this launcher: heartbeats must grow."""
        key = f"heartbeat/{self._slot}"
        found = self._open_entry(key, self._store.read([key])[0], NodeHeartbeat)
        return found.count if found is not None else 0

    def _beat(self, *, left: bool = False) -> None:
        self._store.write(*self._next_beat(left=left))

    def _next_beat(self, *, left: bool = False) -> tuple[str, bytes]:
        self._count += 1
        key = f"heartbeat/{self._slot}"
        heartbeat = NodeHeartbeat(self._join.session, self._count, self._written, left)
        return key, self._seal.close(key, heartbeat)

    def _announce_written(self) -> None:
        self._written += 1
        self._beat()

    def _restore(self) -> None:
        """Write the entry of this node again where somebody took it away, at another slot if need be."""
        key = f"join/{self._slot}"
        if self._store.read([key])[0] != self._seal.close(key, self._join):
            self.join()

    def _hear_notice(self, key: str, data: bytes) -> None:
        notice = self._open_entry(key, data, JoinNotice)
        if notice is None or notice.identity != self._join.node.identity:
            return
        self._notice = data
        if notice.rejection is not None:
            raise RejectedError(notice.rejection)
        self.seat = Seat(self._slot, notice.node_rank, notice.identity, self._join.node.place)
        self.started = notice.started

    def _hear_news(self) -> None:
        for key, entry in self._news(protocol.STATE, protocol.REQUESTS).items():
            if key == protocol.STATE:
                self._state = entry
            elif isinstance(entry, Requests):
                self._hear_requests(entry)

    def _news(self, *keys: str) -> dict[str, Message]:
        """Read those entries of node 0 that have changed; what cannot be read is read again next time."""
        now = self._now
        editions = {protocol.STATE: now.state, protocol.MEMBERS: now.members, protocol.REQUESTS: now.requests}
        changed = [key for key in keys if editions[key] != self._known[key]]
        news = {}
        for key, data in zip(changed, self._store.read(changed), strict=True):
            entry = self._open_entry(key, data, Message)
            if entry is not None:
                news[key], self._known[key] = entry, editions[key]
        return news

    def _hear_requests(self, requests: Requests) -> None:
        self._open = {
            (request.slot, request.number): request
            for request in requests.open
            if self.seat is not None and request.is_for(self.seat)
        }
        for request in requests.open:
            inquiry = self._inquiries.get(request.number)
            if request.slot == self._slot and inquiry is not None and inquiry.recipients is None:
                inquiry.recipients = tuple(seat for seat in self.members if request.is_for(seat))

    def _collect(self) -> None:
        """Read the answers that have come."""
        for inquiry in self._inquiries.values():
            if inquiry.recipients is None or inquiry.done:
                continue
            missing = inquiry.silent
            request = OpenRequest(self._slot, inquiry.number, None, inquiry.request.body)
            keys = [request.answer_key(seat.slot) for seat in missing]
            for seat, key, data in zip(missing, keys, self._store.read(keys), strict=True):
                answer = self._open_entry(key, data, RequestAnswer)
                if answer is not None:
                    inquiry.answers[seat] = answer.body

    def _write_requests(self) -> None:
        self._inquiries = {number: one for number, one in self._inquiries.items() if not one.done}
        waiting = tuple(one.request for one in self._inquiries.values())
        key = f"requests/{self._slot}"
        self._store.write(key, self._seal.close(key, NodeRequests(waiting)))
        self._announce_written()

    def _open_entry(self, key: str, data: bytes | None, kind: type[M]) -> M | None:
        """Read an entry of somebody else; what is not one is as good as not there."""
        if not data:
            return None
        try:
            return self._seal.open(key, data, kind)
        except InvalidMessageError:
            return None
