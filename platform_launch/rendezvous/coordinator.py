"""Node 0's side of a rendezvous: takes nodes in, hears who lives, passes requests on, publishes the state.

What it reads may come from anybody who reaches the port. An entry that is malformed, too large or not sealed
with the job's secret is removed with one warning and ends nothing; what the coordinator itself wrote it
compares once a second, and writes again where somebody changed it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from platform_launch import __version__
from platform_launch.rendezvous import protocol, strangers
from platform_launch.rendezvous.authentication import Seal, Secret
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.liveness import Liveness
from platform_launch.rendezvous.membership import Change, ChangeKind, Member, Membership
from platform_launch.rendezvous.messages import ConsoleLine, InvalidMessageError, M, Message
from platform_launch.rendezvous.open_requests import OpenRequests
from platform_launch.rendezvous.own_entries import OwnEntries
from platform_launch.rendezvous.protocol import (
    Announcement,
    Hello,
    Join,
    JoinNotice,
    Members,
    NodeHeartbeat,
    NodeRequests,
    Rejection,
    RejectionKind,
    Seat,
)
from platform_launch.rendezvous.purpose import Purpose
from platform_launch.rendezvous.rejection import launch_error
from platform_launch.rendezvous.store import Store
from platform_launch.text import Phrase, joined

# Slots for nodes that come back, and for strangers until they are turned away.
_RESERVE = 32
# How often what the coordinator wrote is compared with what lies in the store.
_CHECK_EVERY_S = 1.0
# How long a notice to a node that takes no part is kept for it to read.
_FAREWELL_S = 15.0
# A node that speaks another protocol finds out by itself, and doubts it for some seconds (``connecting``).
_STRANGER_FAREWELL_S = 13.0
_MOST_WARNINGS = 200
# Of so many nodes what they wrote is read in one question.
_TOGETHER = 64


@dataclass
class _Slot:
    """What is known of one slot: the last bytes seen there, whose heartbeat they are, what it published."""

    seen: bytes = b""
    session: str = ""
    count: int = 0
    first_count: int = 0
    written: int = -1
    left: bool = False
    free_at: float | None = None
    values: dict[type[Message], Message] = field(default_factory=dict)


class Coordinator:
    """Call :meth:`step` often; it never waits but for the store.

    ``values`` are the kinds of message that nodes publish here; ``say`` takes lines for the user. To go on in
    the place of a coordinator that was lost, it needs the ``round_of`` that one and its last ``members``, who
    will come again and hold their places until then.
    """

    def __init__(
        self,
        store: Store,
        me: Fingerprint,
        *,
        purpose: Purpose,
        say: Callable[[ConsoleLine], None],
        secret: Secret | None = None,
        spares: int = 0,
        values: Sequence[type[Message]] = (),
        same_nnodes: bool = False,
        round_of: str = "",
        members: Sequence[Seat] = (),
        job: str = "",
    ) -> None:
        self._store = store
        self._me = me
        self._purpose = purpose
        self._say = say
        self._kinds: dict[str, type[Message]] = {f"value/{kind.__name__}": kind for kind in values}
        self._kinds["requests"] = NodeRequests
        self._unread: list[int] = []
        self._seal = Seal(secret, purpose.name, os.urandom(16).hex())
        self._slots = [_Slot() for _ in range(me.nnodes + spares + _RESERVE)]
        self._liveness: Liveness[int] = Liveness()
        self._requests = OpenRequests()
        self._own = OwnEntries(store, self._seal)
        self._warned: set[str] = set()
        self._checked = time.monotonic()
        self.membership = Membership(me, same_nnodes=same_nnodes)
        for seat in members:
            self.membership.restore(seat)
        self._started = {seat.identity for seat in members if seat.node_rank is not None}
        self._open(round_of, job)

    def step(self) -> list[Change]:
        """Look once: who came, who lives, who asks what. Returns what changed among the nodes."""
        now = time.monotonic()
        changes = self._look(now)
        for change in changes:
            self._settle(change, now)
        self._forget(now)
        if any(change.kind is not ChangeKind.REJECTED for change in changes):
            self._publish_members()
        if now - self._checked >= _CHECK_EVERY_S:
            self._checked = now
            for key in self._own.restore():
                text = Phrase(
                    "the entry {key}, which is node 0's own, was changed; it is written again", key=key
                )
                self._warn(key, text)
        self._own.write_now()
        return changes

    def publish(self, state: Message) -> None:
        """Let every node know what the purpose makes of it so far."""
        self._purpose.require(state)
        self._own.put(protocol.STATE, state)
        self._own.write_now()

    def value_of(self, member: Member, kind: type[M]) -> M | None:
        """Return what a node has published last, None where it has not."""
        value = self._slots[member.slot].values.get(kind)
        return value if isinstance(value, kind) else None

    def fetch(self, member: Member, kind: type[M]) -> M | None:
        """Return what a node has published quietly."""
        key = f"value/{kind.__name__}/{member.slot}"
        data = self._store.read([key])[0]
        return self._open_entry(key, data, kind) if data else None

    def values(self, kind: type[M]) -> dict[int, M]:
        """Return what the nodes have published of a kind, by rank."""
        found = {rank: self.value_of(member, kind) for rank, member in self.membership.ranks.items()}
        return {rank: value for rank, value in found.items() if value is not None}

    @property
    def members(self) -> tuple[Seat, ...]:
        """Who takes part, as every node knows it."""
        return tuple(member.seat for member in self.membership.everyone)

    def silent_s(self, member: Member) -> float:
        """Return for how long a member has been silent; one that has left is silent for ever."""
        return self._silence(member.slot)

    def has_left(self, member: Member) -> bool:
        """Tell whether a member said that it needs this rendezvous no longer."""
        return self._slots[member.slot].left

    @property
    def has_unheard_rejections(self) -> bool:
        """Tell whether somebody whose place was given away, or refused, may not have heard so yet."""
        return any(slot.free_at is not None for slot in self._slots)

    def assign(self, spare: Member, rank: int) -> Member:
        """Give a free rank to a spare; it hears of that with its next heartbeat."""
        member = self.membership.assign(spare, rank)
        self._notify(member)
        self._publish_members()
        return member

    def start(self) -> None:
        """Tell each member that has a rank that they begin together; whoever comes later does not."""
        self._started = {member.node.identity for member in self.membership.ranks.values()}
        for member in self.membership.ranks.values():
            self._notify(member)

    def remove(self, member: Member) -> None:
        """Let a member's place be taken by others, or by itself, if it is heard again."""
        self.membership.remove(member)
        self._requests.forget(member.slot)
        seen = self._slots[member.slot].seen
        self._slots[member.slot] = _Slot(seen, free_at=time.monotonic() + _FAREWELL_S)
        self._publish_members()

    def _open(self, round_of: str, job: str) -> None:
        """Lay out the slots first: whoever finds the announcement may use them."""
        slots = range(len(self._slots))
        kinds = ["join", "notice", *self._kinds, "heartbeat"]
        self._store.write_all([(f"{kind}/{slot}", b"") for kind in kinds for slot in slots])
        self._publish_members()
        self._own.put(protocol.REQUESTS, self._requests.entry)
        me, nonce = self._me, self._seal.nonce
        self._hello = Hello(self._purpose.protocol, __version__, me.node_rank, me.place, me.job_id)
        self.announcement = Announcement(
            self._purpose.name,
            me.identity,
            me.place,
            nonce,
            me.nnodes,
            len(self._slots),
            round_of or nonce,
            job,
        )
        unbound = replace(self._seal, nonce="")  # its reader learns the nonce from the announcement
        self._own.put(protocol.HELLO, self._hello, unbound)
        self._own.put(protocol.ANNOUNCEMENT, self.announcement, unbound)
        self._hello_seal = unbound.bound_to(unbound.close(protocol.ANNOUNCEMENT, self.announcement))

    def _look(self, now: float) -> list[Change]:
        keys = [f"heartbeat/{slot}" for slot in range(len(self._slots))]
        changes = []
        for slot, data in enumerate(self._store.read(keys)):
            if data is None:
                self._store.write(keys[slot], b"")
            elif data not in (b"", self._slots[slot].seen):
                change = self._hear(slot, data)
                if change is not None:
                    changes.append(change)
        self._read_values()
        watched = [m.slot for m in self.membership.everyone] + list(self.membership.rivals)
        self._liveness.observe({slot: self._slots[slot].count for slot in watched}, now)
        return changes + self.membership.decide(self._silence, self._has_beaten)

    def _silence(self, slot: int) -> float:
        return float("inf") if self._slots[slot].left else self._liveness.silent_s(slot)

    def _has_beaten(self, slot: int) -> bool:
        return self._slots[slot].count > self._slots[slot].first_count

    def _hear(self, slot: int, data: bytes) -> Change | None:
        """Read a heartbeat that is new, and the rest of what its writer wrote."""
        known, key = self._slots[slot], f"heartbeat/{slot}"
        known.seen = data
        try:
            heartbeat = self._seal.open(key, data, NodeHeartbeat)
        except InvalidMessageError as error:
            return self._turn_away_entry(slot, key, error)
        change = None
        if heartbeat.session != known.session:
            change = self._receive(slot, heartbeat)
            known = self._slots[slot]
            if heartbeat.session != known.session:
                return change  # its other entry is not there yet, or not to be used
        elif heartbeat.count <= known.count:
            return None  # an old one, shown again
        known.count, known.left = heartbeat.count, heartbeat.left
        if heartbeat.left and self._holder(slot) is None:
            self.membership.forget_rival(slot)
            known.free_at = 0.0
        if heartbeat.written != known.written:
            known.written = heartbeat.written
            self._unread.append(slot)
        return change

    def _receive(self, slot: int, heartbeat: NodeHeartbeat) -> Change | None:
        """Read who came to a slot."""
        key = f"join/{slot}"
        data = self._store.read([key])[0]
        if not data:
            self._slots[slot].seen = b""  # look again: it was taken away, and will be written anew
            return None
        try:
            join = self._seal.open(key, data, Join)
        except InvalidMessageError as error:
            return self._turn_away_entry(slot, key, error)
        if join.session != heartbeat.session:
            self._slots[slot].seen = b""
            return None
        holder = self._holder(slot)
        if holder is not None and holder.node.identity != join.node.identity:
            # Somebody wrote over the entries of a node that takes part.
            text = Phrase(
                "an entry of {place} at the place of {holder}", place=join.node.place, holder=holder.place
            )
            self._warn(f"slot {slot}", text)
            self._store.write(f"heartbeat/{slot}", b"")
            return None
        count = heartbeat.count
        known = self._slots[slot]
        self._slots[slot] = _Slot(known.seen, heartbeat.session, count, count, values=known.values)
        return self.membership.receive(slot, join)

    def _read_values(self) -> None:
        """Read what nodes have published and what they ask, of many at once."""
        while self._unread:
            slots, self._unread = self._unread[:_TOGETHER], self._unread[_TOGETHER:]
            wanted = [(slot, name, kind) for slot in slots for name, kind in self._kinds.items()]
            found = self._store.read([f"{name}/{slot}" for slot, name, _ in wanted])
            for (slot, name, kind), data in zip(wanted, found, strict=True):
                entry = self._open_entry(f"{name}/{slot}", data, kind) if data else None
                if isinstance(entry, NodeRequests):
                    if self._requests.receive(slot, entry, self.membership.everyone, time.monotonic()):
                        self._own.put(protocol.REQUESTS, self._requests.entry)
                elif entry is not None:
                    self._slots[slot].values[kind] = entry

    def _open_entry(self, key: str, data: bytes, kind: type[M]) -> M | None:
        try:
            return self._seal.open(key, data, kind)
        except InvalidMessageError as error:
            self._warn(key, Phrase("the entry {key}: {problem}", key=key, problem=str(error)))
            return None

    def _settle(self, change: Change, now: float) -> None:
        """Tell the node what became of it."""
        member, before = change.member, change.before
        if before is not None and before.slot != member.slot:
            self._requests.forget(before.slot)
            self._slots[before.slot].values.clear()
            self._slots[before.slot].free_at = now + _FAREWELL_S
            if change.kind is ChangeKind.REPLACED:
                lost = Rejection(RejectionKind.REPLACED, before.node.node_rank, before.place, member.place)
                self._own.notify(before.slot, JoinNotice(before.node.identity, rejection=lost))
        if change.rejection is not None:
            stranger = change.rejection.kind is RejectionKind.OTHER_PROTOCOL
            self._slots[member.slot].free_at = now + (_STRANGER_FAREWELL_S if stranger else _FAREWELL_S)
            error = launch_error(change.rejection)
            about = f"{change.rejection.kind} {member.place} {error.message}"
            self._warn(about, joined((error.message, error.hint), "; "))
            self._own.notify(member.slot, JoinNotice(member.node.identity, rejection=change.rejection))
        else:
            self._notify(member)

    def _notify(self, member: Member) -> None:
        identity = member.node.identity
        self._own.notify(member.slot, JoinNotice(identity, member.rank, identity in self._started))

    def _turn_away_entry(self, slot: int, key: str, error: InvalidMessageError) -> Change | None:
        """Remove an entry that cannot be used; a node that has left it is told why."""
        holder, join_key = self._holder(slot), f"join/{slot}"
        if holder is None:
            join = self._store.read([join_key])[0] or b""
            heartbeat, ours = self._slots[slot].seen, self._hello
            change = strangers.of_another_build(slot, heartbeat, self._hello_seal, ours)
            change = change or strangers.without_our_secret(slot, join, error, self._seal, ours)
            if change is not None:
                return change
        text = Phrase("the entry {key}: {problem}", key=key, problem=str(error))
        if holder is not None:
            text = Phrase("{text} (at the place of {holder})", text=text, holder=holder.place)
        self._warn(f"slot {slot}", text)
        self._store.write(f"heartbeat/{slot}", b"")
        self._slots[slot].seen = b""
        if holder is None:
            self._store.write(join_key, b"")
        return None

    def _holder(self, slot: int) -> Member | None:
        return next((m for m in self.membership.everyone if m.slot == slot), None)

    def _forget(self, now: float) -> None:
        """Free the slots of those who take no part any more, and end requests whose time is up."""
        for slot, known in enumerate(self._slots):
            if known.free_at is not None and (now >= known.free_at or known.left):
                self._slots[slot] = _Slot()
                self._requests.forget(slot)
                self._own.forget_notice(slot)
                self._store.write_all([(f"{kind}/{slot}", b"") for kind in ("heartbeat", "notice", "join")])
        over = self._requests.expire(now)
        for answers in over:
            self._store.delete(answers)
        if over:
            self._own.put(protocol.REQUESTS, self._requests.entry)

    def _publish_members(self) -> None:
        self._own.put(protocol.MEMBERS, Members(self.members))

    def _warn(self, about: str, text: str) -> None:
        """Warn once of each thing, and of no more things than anybody reads."""
        if about not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add(about)
            self._say(ConsoleLine("WARN", Phrase("turned away: {text}", text=text), "rendezvous-turned-away"))
