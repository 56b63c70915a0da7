"""Which nodes take part in a rendezvous, and with which ranks. Pure.

A rank belongs to the node that joined with it first, as long as that node gives signs of life. A newcomer
with the same rank replaces only a silent node, and is rejected otherwise. A launcher that joins again
(dist-launch restarts its process) gets its own rank back.

A newcomer that does not seem to belong to the coordinator's job (``Fingerprint.job``) waits: a node of the
job may join with the same rank, or the other job's node 0 may appear, and then the newcomer is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum

from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.messages import Message
from platform_launch.rendezvous.protocol import Join, MemberInfo, Rejection, RejectionKind
from platform_launch.values import dataclass

# Nodes send a heartbeat at least once a second: one that was silent for this long has died or lost its link.
REPLACED_AFTER_S = 4.0
# For how long a newcomer that may be another job's waits. The nodes of a job start within seconds, mostly; a
# mixed job would train nonsense for days.
DOUBTED_FOR_S = 30.0
_MOST_OTHER_JOBS = 64


@dataclass(frozen=True)
class Member:
    """A node that takes part. ``rank`` is None for a spare; ``details`` are what the purpose needs of it.

    ``number`` is that of its connection (``server.Peer``).
    """

    number: int
    rank: int | None
    node: Fingerprint
    details: Message | None = None

    @property
    def place(self) -> str:
        """Where it runs."""
        return self.node.place

    @property
    def info(self) -> MemberInfo:
        """What every node knows about it."""
        return MemberInfo(self.number, self.rank, self.node.identity, self.place)


class ChangeKind(Enum):
    """What happened to a node."""

    JOINED = "joined"
    RETURNED = "returned"
    REPLACED = "replaced"
    REJECTED = "rejected"


@dataclass(frozen=True)
class Change:
    """One change. ``before`` is the previous holder of a rank that a member returned to or took over."""

    kind: ChangeKind
    member: Member
    before: Member | None = None
    rejection: Rejection | None = None


class Membership:
    """The members by rank, and the spares. ``me`` is the coordinator's node.

    ``replaced_after_s`` is how long a node must be silent before a newcomer may replace it. ``size`` is how
    many ranks there are: nodes that join with a higher one are spares. ``same_nnodes``
    rejects nodes that expect another number of nodes. ``is_connected(number)`` asks about a member.
    ``newcomers_wait``: the ranks are not those of the platform, so that a node that has not trained yet does
    not know its own, and waits as a spare. A newcomer that may be another job's waits ``doubted_for_s``.
    """

    def __init__(
        self,
        me: Fingerprint,
        *,
        same_nnodes: bool = False,
        is_connected: Callable[[int], bool] = lambda _number: False,
    ) -> None:
        self._is_connected = is_connected
        self._me = me
        self._same_nnodes = same_nnodes
        self.replaced_after_s = REPLACED_AFTER_S
        self.newcomers_wait = False
        self.doubted_for_s = DOUBTED_FOR_S
        self.size = me.nnodes
        self.ranks: dict[int, Member] = {}
        self.spares: list[Member] = []
        self._rivals: dict[int, Member] = {}
        self._rivals_since: dict[int, float] = {}
        self._other_jobs: set[str] = set()

    @property
    def everyone(self) -> list[Member]:
        """The members with a rank in their order, then the spares."""
        return [*(self.ranks[rank] for rank in sorted(self.ranks)), *self.spares]

    @property
    def rivals(self) -> Mapping[int, Member]:
        """By number, the newcomers whose rank is taken, until it is known whether its holder lives."""
        return self._rivals

    @property
    def doubted(self) -> list[Member]:
        """The newcomers that wait because they may be another job's."""
        return [rival for rival in self._rivals.values() if self._may_be_other_job(rival.node)]

    def record_other_job(self, job: str) -> None:
        """Record a job that needs the same ports: its nodes are rejected."""
        if job != self._me.job and len(self._other_jobs) < _MOST_OTHER_JOBS:
            self._other_jobs.add(job)

    def expel_other_jobs(self) -> list[Change]:
        """Reject members that turned out to be another job's."""
        expelled = [member for member in self.everyone if member.node.job in self._other_jobs]
        for member in expelled:
            self.remove(member)
        return [self._reject_other_job(member) for member in expelled]

    def receive(self, number: int, join: Join) -> Change | None:
        """Admit or reject a newcomer; None if that depends on which nodes are silent."""
        node = join.node
        newcomer = Member(number, None if join.spare else node.node_rank, node, join.details)
        if node.job_id and self._me.job_id and node.job_id != self._me.job_id:
            return self._reject(newcomer, RejectionKind.OTHER_JOB, node.job_id, self._me.job_id)
        known = next((m for m in self.everyone if m.node.identity == node.identity), None)
        if known is not None:
            # An identity is no secret: a stranger that claims it must neither replace a node that is
            # connected nor redirect others.
            if self._is_connected(known.number) or join.details != known.details:
                return self._reject(newcomer, RejectionKind.RANK_TAKEN, by=known.place)
            if known.rank is None:
                newcomer = replace(newcomer, rank=None)
            else:  # a spare may have been given one
                node = replace(node, node_rank=known.rank, stand_in=known.node.stand_in)
                newcomer = replace(newcomer, rank=known.rank, node=node)
            self._add(newcomer, instead_of=known)
            return Change(ChangeKind.RETURNED, newcomer, known)
        if self._may_be_other_job(node):
            if node.job in self._other_jobs or node.nnodes != self._me.nnodes:
                return self._reject_other_job(newcomer)
            self._rivals[number] = newcomer
            return None
        return self._place(newcomer)

    def _place(self, newcomer: Member) -> Change | None:
        """Give a newcomer of this job its rank, or reject it; None if that depends on silent nodes."""
        node = newcomer.node
        if newcomer.rank is None or (self.newcomers_wait and self._is_new(node)):
            newcomer = replace(newcomer, rank=None)
            self._add(newcomer)
            return Change(ChangeKind.JOINED, newcomer)
        other_count = self._same_nnodes and node.nnodes != self._me.nnodes
        if other_count or not 0 <= newcomer.rank < self._me.nnodes:
            return self._reject(
                newcomer, RejectionKind.RANK_OUT_OF_RANGE, str(node.nnodes), str(self._me.nnodes)
            )
        if newcomer.rank == self._me.node_rank and node.identity != self._me.identity:
            return self._reject(newcomer, RejectionKind.RANK_TAKEN)  # the coordinator knows who it is
        holder = self.ranks.get(newcomer.rank)
        outside = newcomer.rank >= self.size and not node.refusal
        if outside or (holder is not None and self._may_wait_as_spare(node, holder.node)):
            spare = replace(newcomer, rank=None)
            self._add(spare)
            return Change(ChangeKind.JOINED, spare)
        if holder is not None:
            self._rivals[newcomer.number] = newcomer
            return None
        self._add(newcomer)
        return Change(ChangeKind.JOINED, newcomer)

    def decide(
        self, silent_s: Callable[[int], float], has_beaten: Callable[[int], bool], now: float
    ) -> list[Change]:
        """Decide about newcomers whose rank was taken, and those that may be another job's.

        ``silent_s(number)`` is how long a node has been silent, ``has_beaten(number)`` whether it gave a sign
        of life since it joined. ``now`` is on a monotonic clock.
        """
        changes: list[Change] = []
        for number, rival in list(self._rivals.items()):
            holder = None if rival.rank is None else self.ranks.get(rival.rank)
            if self._may_be_other_job(rival.node):
                since = self._rivals_since.setdefault(number, now)
                lives = holder is not None and silent_s(holder.number) == 0.0 and has_beaten(number)
                taken = lives and holder is not None and not self._may_be_other_job(holder.node)
                if rival.node.job in self._other_jobs or taken:
                    self.forget_rival(number)
                    changes.append(self._reject_other_job(rival))
                    continue
                if now - since < self.doubted_for_s:
                    continue
            if holder is None or self._may_wait_as_spare(rival.node, holder.node):
                self.forget_rival(number)
                placed = self._place(rival)
                changes += [placed] if placed is not None else []
                continue
            if silent_s(holder.number) >= self.replaced_after_s:
                change = Change(ChangeKind.REPLACED, rival, holder)
            elif silent_s(holder.number) == 0.0 and has_beaten(number):
                self.forget_rival(number)
                changes.append(self._reject(rival, RejectionKind.RANK_TAKEN, by=holder.place))
                continue
            else:
                continue
            self.forget_rival(number)
            self._add(rival, instead_of=holder)
            changes.append(change)
        return changes

    def remove(self, member: Member) -> None:
        """Forget a member; its rank is free."""
        if member.rank is not None and self.ranks.get(member.rank) == member:
            del self.ranks[member.rank]
        if member in self.spares:
            self.spares.remove(member)

    def forget_rival(self, number: int) -> None:
        """Forget a newcomer that left again."""
        self._rivals.pop(number, None)
        self._rivals_since.pop(number, None)

    def assign(self, spare: Member, rank: int) -> Member:
        """Assign a free rank to a spare, and return the resulting member."""
        if rank in self.ranks:
            raise ValueError(f"rank {rank} is held by {self.ranks[rank].place}")
        self.spares.remove(spare)
        member = replace(spare, rank=rank, node=replace(spare.node, node_rank=rank, stand_in=True))
        self._add(member)
        return member

    def reorder(self, order: Sequence[int]) -> None:
        """Reassign all ranks: ``order[rank]`` is the current rank of the node that gets ``rank``."""
        before, self.ranks, self.size = self.ranks, {}, len(order)
        for rank, came_as in enumerate(order):
            member = before[came_as]
            if rank != came_as:
                node = replace(member.node, node_rank=rank, stand_in=True)
                member = replace(member, rank=rank, node=node)
            self.ranks[rank] = member

    def _add(self, member: Member, instead_of: Member | None = None) -> None:
        if instead_of is not None:
            self.remove(instead_of)
        if member.rank is None:
            self.spares.append(member)
        else:
            self.ranks[member.rank] = member

    def _is_new(self, node: Fingerprint) -> bool:
        known = node.restarts_used or node.stand_in or node.identity == self._me.identity
        return not (known or node.refusal)

    @staticmethod
    def _may_wait_as_spare(node: Fingerprint, holder: Fingerprint) -> bool:
        """Return the rejection of a replaced node that returns, or of a stand-in whose rank is taken."""
        return (holder.stand_in or node.stand_in) and not node.refusal

    def _may_be_other_job(self, node: Fingerprint) -> bool:
        return node.may_be_of_another_job(self._me)

    def _reject_other_job(self, newcomer: Member) -> Change:
        return self._reject(newcomer, RejectionKind.OTHER_JOB, newcomer.node.command, self._me.command)

    def _reject(
        self, member: Member, kind: RejectionKind, theirs: str = "", ours: str = "", *, by: str = ""
    ) -> Change:
        node = member.node
        rejection = Rejection(kind, node.node_rank, node.place, by or self._me.place, theirs, ours)
        return Change(ChangeKind.REJECTED, member, rejection=rejection)
