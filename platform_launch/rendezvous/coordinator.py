"""Node 0's side of a rendezvous: admits nodes, tracks liveness, passes requests on, publishes the state.

Anybody who reaches the port may send something. What is malformed, too large or not sealed with the job's
secret is rejected with one warning and ends nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from queue import Empty
from threading import Event

from platform_launch import __version__
from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.liveness import Liveness
from platform_launch.rendezvous.loop import event_loop
from platform_launch.rendezvous.membership import Change, ChangeKind, Member, Membership
from platform_launch.rendezvous.messages import ConsoleLine, M, Message
from platform_launch.rendezvous.open_requests import OpenRequests
from platform_launch.rendezvous.protocol import (
    Answered,
    Ask,
    Fetch,
    Fetched,
    JoinNotice,
    MemberInfo,
    Publish,
    Recipients,
    Rejection,
    RejectionKind,
    RequestAnswer,
    Welcome,
)
from platform_launch.rendezvous.purpose import Purpose
from platform_launch.rendezvous.rejection import launch_error
from platform_launch.rendezvous.server import Joined, Misfit, OtherLead, Peer, Received, Server, Unreadable
from platform_launch.text import Phrase, joined

_MOST_WARNINGS = 200
_INFINITE = float("inf")
# A rejected node tries again for five seconds (``connecting``), and must find this rendezvous.
_MISFIT_FAREWELL_S = 6.5


class Coordinator:
    """Call :meth:`step` often, from one thread; it never waits. ``happened`` is set if there is work to do.

    ``listeners`` are the sockets that nodes connect to. ``mark`` distinguishes the job from others on the
    same hosts. ``log`` receives lines for the user. ``welcome`` is sent to every caller.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        me: Fingerprint,
        *,
        purpose: Purpose,
        log: Callable[[ConsoleLine], None],
        secret: Secret | None = None,
        same_nnodes: bool = False,
        mark: str = "",
    ) -> None:
        self._me = me
        self._purpose = purpose
        self._log = log
        self._peers: dict[int, Peer] = {}
        self._removed: dict[int, int] = {}  # peer → its heartbeats when it was given up
        self._liveness: Liveness[int] = Liveness()
        self._requests = OpenRequests()
        self._warned: set[str] = set()
        self._started: set[str] = set()
        self._misfits_leave_at = 0.0
        self.membership = Membership(me, same_nnodes=same_nnodes, is_connected=self._is_connected)
        self.welcome = Welcome(
            purpose.protocol,
            __version__,
            purpose.name,
            me.identity,
            me.place,
            me.job_id,
            mark,
            "",
            me.nnodes,
            os.urandom(8).hex(),
            job=me.job,
        )
        self._server = Server(event_loop(), listeners, purpose, self.welcome, secret)

    @property
    def happened(self) -> Event:
        """Set when a node has joined, left or sent something. The thread that waits for it clears it."""
        return self._server.happened

    def step(self) -> list[Change]:
        """Process arrivals, heartbeats and requests. Returns the changes among the nodes."""
        self._server.steps += 1
        now = time.monotonic()
        changes = self._receive(now)
        self._expire(now)
        changes += self._restore()
        changes += self.membership.decide(self._silence, self._has_beaten, now)
        for change in changes:
            self._apply(change)
        self._requests.expire(now)
        return changes

    def publish(self, state: Message) -> None:
        """Send a value to every node. It replaces the last one of its kind."""
        self._purpose.require(state)
        self._server.publish(state)

    def close(self) -> None:
        """Disconnect all nodes."""
        self._server.close()

    def value_of(self, member: Member, kind: type[M]) -> M | None:
        """Return the value of a kind that a node published last, None if there is none."""
        peer = self._peers.get(member.number)
        value = peer.values.get(kind) if peer is not None else None
        return value if isinstance(value, kind) else None

    def values(self, kind: type[M]) -> dict[int, M]:
        """Return the values of a kind that the nodes have published, by rank."""
        found = {rank: self.value_of(member, kind) for rank, member in self.membership.ranks.items()}
        return {rank: value for rank, value in found.items() if value is not None}

    @property
    def members(self) -> tuple[MemberInfo, ...]:
        """The members, as every node knows them."""
        return tuple(member.info for member in self.membership.everyone)

    def silent_s(self, member: Member) -> float:
        """Return how long a member has been silent; one that has left is silent forever."""
        return self._silence(member.number)

    def closed_s(self, member: Member) -> float:
        """Return how long ago a member's kernel closed the connection, 0 if it is connected or has resumed.

        A live launcher resumes within a moment. So either the launcher was killed, or the network closes
        connections.
        """
        peer = self._peers.get(member.number)
        if peer is None or peer.closed_at is None or peer.left:
            return 0.0
        return time.monotonic() - peer.closed_at

    def ended_s(self, member: Member) -> float:
        """Return the same for a connection closed in an orderly way, which a network hardly does."""
        peer = self._peers.get(member.number)
        return 0.0 if peer is None or peer.ended_at is None else self.closed_s(member)

    def is_stopped(self, member: Member) -> bool:
        """Return whether a silent member's machine answers: then its launcher was stopped or is stuck."""
        peer = self._peers.get(member.number)
        return peer is not None and peer.writer is not None and peer.machine_answers

    def clock_of(self, member: Member) -> tuple[float, float] | None:
        """Return a node's clock minus that of this node, and the maximum error; None if unknown."""
        peer = self._peers.get(member.number)
        return None if peer is None or peer.error_s is None else (peer.offset_s, peer.error_s)

    def has_left(self, member: Member) -> bool:
        """Return whether a member has left this rendezvous."""
        peer = self._peers.get(member.number)
        return peer is None or peer.left

    @property
    def has_unheard_rejections(self) -> bool:
        """Whether a node that was rejected or lost its rank may not know it yet."""
        if time.monotonic() < self._misfits_leave_at:
            return True
        return any(peer.rejected_at is not None and peer.writer is not None for peer in self._peers.values())

    def assign(self, spare: Member, rank: int) -> Member:
        """Give a free rank to a spare."""
        member = self.membership.assign(spare, rank)
        self._notify(member)
        return member

    def start(self) -> None:
        """Tell each member with a rank that the run starts; nodes that join later are not part of it."""
        self._started = {member.node.identity for member in self.membership.ranks.values()}
        for member in self.membership.ranks.values():
            self._notify(member)

    def remove(self, member: Member) -> None:
        """Free a member's rank for others, or for itself if it is heard again."""
        self.membership.remove(member)
        self._requests.forget(member.number)
        peer = self._peers.get(member.number)
        if peer is not None and peer.left:
            self._forget(peer)
        elif peer is not None:
            self._removed[member.number] = peer.count

    def _receive(self, now: float) -> list[Change]:
        self.happened.clear()
        changes: list[Change] = []
        while True:
            try:
                event = self._server.events.get_nowait()
            except Empty:
                return changes
            match event:
                case Joined(peer, resumed):
                    self._peers[peer.number] = peer
                    if resumed:
                        self._resume(peer)
                    else:
                        change = self.membership.receive(peer.number, peer.join)
                        changes += [change] if change is not None else []
                case Received(peer, message, size):
                    peer.waiting_bytes -= size
                    self._handle(peer, message, now)
                case Misfit(hello, kind):
                    if not self._misfits_leave_at:
                        self._misfits_leave_at = now + _MISFIT_FAREWELL_S
                    theirs, ours = (
                        (hello.build, self.welcome.build)
                        if kind is RejectionKind.OTHER_PROTOCOL
                        else ("", "")
                    )
                    rejection = Rejection(kind, hello.node_rank, hello.place, self._me.place, theirs, ours)
                    node = Fingerprint(hello.node_rank, 0, hello.place, (), "", hello.job_id, job=hello.job)
                    changes.append(
                        Change(ChangeKind.REJECTED, Member(-1, hello.node_rank, node), None, rejection)
                    )
                case OtherLead(hello):
                    self.membership.record_other_job(hello.job)
                    changes += self.membership.expel_other_jobs() if not self._started else []
                case Unreadable(address, problem, faulty):
                    who = self._holder(faulty.number) if faulty is not None else None
                    place = who.place if who is not None else address
                    self._warn(place, Phrase("{place}: {problem}", place=place, problem=problem))

    def _handle(self, peer: Peer, message: Message, now: float) -> None:
        member = self._holder(peer.number)
        match message:
            case Publish(body):
                peer.values[type(body)] = body
            case Ask() if member is not None:
                receivers = self._requests.open(member, message, self.membership.everyone, now)
                self._server.send(peer, Recipients(message.number, tuple(one.info for one in receivers)))
                request = self._requests.request(member, message.number)
                for one in receivers:
                    self._server.send(self._peers[one.number], request)
            case RequestAnswer(asker, number, body) if member is not None:
                if asker in self._peers and self._requests.answer(member, asker, number):
                    self._server.send(self._peers[asker], Answered(number, member.info, body))
            case Fetch(number, kind, rank) if member is not None:
                known = {one.__name__: one for one in self._purpose.messages}
                wanted = known.get(kind)
                values: dict[int, Message] = dict(self.values(wanted)) if wanted is not None else {}
                if rank is not None:
                    values = {rank: values[rank]} if rank in values else {}
                self._server.send(peer, Fetched(number, values))

    def _resume(self, peer: Peer) -> None:
        """Send a node again what it may have missed."""
        member = self._holder(peer.number)
        if member is not None:
            self._notify(member)
            for request in self._requests.unanswered_by(member):
                self._server.send(peer, request)

    def _expire(self, now: float) -> None:
        watched = [m.number for m in self.membership.everyone] + list(self.membership.rivals)
        counts = {number: self._peers[number].count for number in watched if number in self._peers}
        self._liveness.observe(counts, now)
        for peer in list(self._peers.values()):
            if peer.left and self._holder(peer.number) is None:
                self.membership.forget_rival(peer.number)
                self._forget(peer)
            elif peer.rejected_at is not None and peer.writer is None:
                self._forget(peer)

    def _restore(self) -> list[Change]:
        """Readmit nodes that were given up and send again."""
        changes = []
        for number, count in list(self._removed.items()):
            peer = self._peers.get(number)
            if peer is None or peer.rejected_at is not None:
                del self._removed[number]
            elif peer.count > count:
                del self._removed[number]
                change = self.membership.receive(number, peer.join)
                changes += [change] if change is not None else []
        return changes

    def _is_connected(self, number: int) -> bool:
        peer = self._peers.get(number)
        return peer is not None and peer.writer is not None and not peer.left

    def _silence(self, number: int) -> float:
        peer = self._peers.get(number)
        return _INFINITE if peer is None or peer.left else self._liveness.silent_s(number)

    def _has_beaten(self, number: int) -> bool:
        peer = self._peers.get(number)
        return peer is not None and 0 <= peer.first_count < peer.count

    def _apply(self, change: Change) -> None:
        """Inform the nodes that a change concerns."""
        member, before = change.member, change.before
        if before is not None and before.number != member.number:
            self._requests.forget(before.number)
            old = self._peers.get(before.number)
            if old is not None and change.kind is ChangeKind.REPLACED:
                lost = Rejection(RejectionKind.REPLACED, before.node.node_rank, before.place, member.place)
                self._server.notify(old, JoinNotice(rejection=lost))
                old.rejected_at = time.monotonic()
            elif old is not None:
                self._forget(old)
        if change.rejection is None:
            self._notify(member)
            return
        error = launch_error(change.rejection)
        about = f"{change.rejection.kind} {member.place} {error.message}"
        self._warn(about, joined((error.message, error.hint), "; "))
        peer = self._peers.get(member.number)
        if peer is not None:
            peer.rejected_at = time.monotonic()
            self._server.notify(peer, JoinNotice(rejection=change.rejection))

    def _notify(self, member: Member) -> None:
        info = member.info
        peer = self._peers.get(member.number)
        if peer is not None:
            self._server.notify(peer, JoinNotice(info, info.identity in self._started))

    def _forget(self, peer: Peer) -> None:
        self._peers.pop(peer.number, None)
        self._removed.pop(peer.number, None)
        self._server.forget(peer)

    def _holder(self, number: int) -> Member | None:
        return next((m for m in self.membership.everyone if m.number == number), None)

    def _warn(self, about: str, text: str) -> None:
        """Warn once per subject, and about a limited number of subjects."""
        if about not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add(about)
            self._log(ConsoleLine("WARN", Phrase("turned away: {text}", text=text), "rendezvous-turned-away"))


__all__ = ["Coordinator", "MemberInfo"]
