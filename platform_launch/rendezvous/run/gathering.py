"""Node 0 until the run starts: registers the nodes, reports who is absent, and decides whether to start."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from platform_launch.errors import (
    HardwareError,
    InstallationError,
    NodesAbsentError,
    NodesDisagreeError,
    TopologyError,
    UnfitNodeError,
)
from platform_launch.plan.network_order import network_order
from platform_launch.rendezvous import verdict
from platform_launch.rendezvous.coordinator import Coordinator
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.membership import DOUBTED_FOR_S, Change, Member
from platform_launch.rendezvous.messages import ConsoleLine
from platform_launch.rendezvous.protocol import RejectionKind
from platform_launch.rendezvous.ranks import absent_ranks, describe_absent, looks_like_processes
from platform_launch.rendezvous.rejection import launch_error
from platform_launch.rendezvous.run.state import RunPhase, RunState
from platform_launch.rendezvous.verdict import RunRefusal
from platform_launch.text import Phrase, joined

_LOG_FIRST_S = 2.0
_LOG_EVERY_S = 5.0
# Per node. The absent ranks are sent to all nodes, so less often the more nodes there are.
_PUBLISH_EVERY_S = 0.002
# A run must not start with a node that may be dead already; all learn at once which one that is.
_DOUBTED_AFTER_S = 2.5
# A spare takes a missing node's rank after this long. Nodes of the previous attempt come first, and a slow
# image pull should not cost a node its rank.
LATE_S = 30.0
# A node that waited as a spare during the last attempt is back within this time.
_SPARES_BACK_S = 5.0
# Reasons why a node cannot start that a spare in its place may not have.
_OF_THE_NODE = (InstallationError.exit_code, HardwareError.exit_code, UnfitNodeError.exit_code)
# If more nodes than there are spares have one of these, other nodes would not do better.
_OF_THE_IMAGE = (InstallationError.exit_code, NodesDisagreeError.exit_code)
_SECRETS = (
    RejectionKind.NO_SECRET,
    RejectionKind.OTHER_SECRET,
    RejectionKind.COORDINATOR_WITHOUT_SECRET,
)
_SECRETS_DOUBTED_S = 4.0
CORRECT_MASTER_ADDR = Phrase("set MASTER_ADDR to the name or address of node 0")


def refusal_of(node: Fingerprint) -> RunRefusal:
    """Return why the job is refused for a node that cannot start."""
    reason = Phrase(
        "node {rank}, {place}, cannot start: {refusal}",
        rank=node.node_rank,
        place=node.place,
        refusal=node.refusal,
    )
    # The node alone is unfit; the others only lack it.
    unfit = node.refusal_code == UnfitNodeError.exit_code
    code = NodesAbsentError.exit_code if unfit else node.refusal_code
    return RunRefusal(
        code, reason, Phrase("look at the output of node {rank}", rank=node.node_rank), node.node_rank
    )


class Gathering:
    """Call :meth:`step` often; it never waits.

    ``replaced`` are ranks that spares get at once; a late or unfit node loses its rank to a spare too.
    ``spares`` is how many were started. A restart continues with ``min_nodes`` or more if the others do not
    return; ``trained`` is how many the attempt before had. ``by_network``: in the first attempt, ranks are
    reassigned in the network's order. ``state`` is the state published last, ``restarts_used`` the highest
    number of restarts
    that any node has seen. ``master_addr_problem`` is why others may look for node 0 elsewhere, if so; it is
    reported if they do not join.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        me: Fingerprint,
        *,
        timeout_s: float,
        node_timeout_s: float,
        log: Callable[[ConsoleLine], None],
        replaced: Sequence[int] = (),
        spares: int = 0,
        min_nodes: int | None = None,
        trained: int | None = None,
        by_network: bool = False,
    ) -> None:
        self._coordinator = coordinator
        self._me = me
        self._timeout_s = timeout_s
        self._node_timeout_s = node_timeout_s
        self._log = log
        self._last_seen: dict[int, float] = {}
        self._twice: dict[str, int] = {}  # launchers whose rank another one has
        self._foreign: set[int] = set()  # ranks whose launchers speak another protocol
        self._without_secret: dict[int, tuple[float, RunRefusal]] = {}
        self._awaiting_spare: dict[int | None, RunRefusal] = {}
        self._lost = set(replaced)
        self._spares = spares
        self._min_nodes = me.nnodes if min_nodes is None else min_nodes
        self._trained = me.nnodes if trained is None else trained
        self._by_network = by_network
        coordinator.membership.newcomers_wait = by_network and bool(me.network) and me.restarts_used > 0
        coordinator.membership.doubted_for_s = min(DOUBTED_FOR_S, timeout_s / 2)
        self._enough_since: float | None = None
        self._unfit: set[str] = set()
        self._doubted: set[str] = set()
        self._time_is_up = False
        self._began = time.monotonic()
        self._reported_at = self._began - _LOG_EVERY_S + _LOG_FIRST_S
        self._published_at = 0.0
        self.master_addr_problem = ""
        self.restarts_used = me.restarts_used
        self.state = RunState(RunPhase.WAITING, me.nnodes, tuple(range(me.nnodes)))
        coordinator.publish(self.state)

    @property
    def present(self) -> dict[int, Fingerprint]:
        """The nodes that have joined, by rank."""
        return {rank: member.node for rank, member in self._coordinator.membership.ranks.items()}

    @property
    def clock_offsets_s(self) -> dict[int, float]:
        """Each node's clock minus that of node 0, by rank; 0 if the difference is within its error."""
        offsets = {}
        for rank, member in self._coordinator.membership.ranks.items():
            offset_s, error_s = self._coordinator.clock_of(member) or (0.0, 0.0)
            offsets[rank] = offset_s if abs(offset_s) > error_s else 0.0
        return offsets

    def step(self) -> RunState:
        """Register arrivals and departures, and return the state."""
        for change in self._coordinator.step():
            self._handle(change)
        now = time.monotonic()
        self._expire(now)
        self._report_doubted()
        if self.state.phase is RunPhase.WAITING:
            absent = self._fill(absent_ranks(self.present, self._me.nnodes), now)
            doubted = self._doubted_s()
            if absent and self._may_continue_without(absent, now):
                absent = []
            if absent or doubted:
                self._wait_for(absent, doubted, now)
            elif not self._coordinator.membership.rivals:
                self._judge()
        return self.state

    def all_left(self, *, hurried: bool) -> bool:
        """Return whether all know of a refusal, including those that may still join unless time is up."""
        for change in self._coordinator.step():
            self._handle(change)
        members = self._coordinator.membership.everyone
        came = len(members) + len(self._twice) + len(self._foreign)
        if came < self._me.nnodes and not hurried and not self._time_is_up:
            return False
        if (self._twice or self._foreign) and self._coordinator.has_unheard_rejections:
            return False
        mine = self._me.identity  # node 0's own part joins late if the machine is slow and the time short
        if not hurried and mine not in self._twice and all(one.node.identity != mine for one in members):
            return False
        return all(
            self._coordinator.has_left(member) or self._coordinator.silent_s(member) >= self._node_timeout_s
            for member in members
        )

    def move(self) -> None:
        """End the roll call here: the nodes gather elsewhere."""
        if self.state.phase is RunPhase.WAITING:
            self._publish(replace(self.state, phase=RunPhase.MOVED))

    def refuse(self, refusal: RunRefusal) -> None:
        """End the roll call."""
        if self.state.phase is RunPhase.WAITING:
            self._publish(replace(self.state, phase=RunPhase.REFUSED, refusal=refusal))

    def _handle(self, change: Change) -> None:
        member, node = change.member, change.member.node
        if change.rejection is not None:
            self._handle_misfit(member, change)
            return
        self.restarts_used = max(self.restarts_used, node.restarts_used)
        if node.refusal:
            refusal = refusal_of(node)
            if node.refusal_code not in _OF_THE_NODE or node.node_rank == self._me.node_rank:
                self.refuse(refusal)
            elif self._await_spare(refusal):
                self._coordinator.remove(member)
                if node.identity not in self._unfit:
                    self._unfit.add(node.identity)
                    text = Phrase("{reason}; a spare may replace it", reason=refusal.reason)
                    self._log(ConsoleLine("WARN", text, "node-left-out-at-once"))

    def _await_spare(self, refusal: RunRefusal) -> bool:
        """Return whether a spare may replace a node that cannot take part; refuse the job if not."""
        back = self.present.keys()
        awaiting = {rank: one for rank, one in self._awaiting_spare.items() if rank not in back}
        awaiting[refusal.node] = refusal
        of_image = sum(one.exit_code in _OF_THE_IMAGE for one in awaiting.values())
        most_missing = self._spares + self._most_missing
        if not most_missing or of_image > most_missing:
            self.refuse(refusal)
            return False
        self._awaiting_spare = awaiting
        return True

    def _handle_misfit(self, member: Member, change: Change) -> None:
        """End the roll call for a rejected node if the job cannot start as it was launched.

        A second launcher with a rank ends nothing: it may be a stranger's. But if as many launchers joined as
        there are nodes, and two of them have one rank, another rank is missing.
        """
        rejection = change.rejection
        if rejection is None or member.node.refusal:
            return
        error = launch_error(rejection)
        if rejection.kind is RejectionKind.RANK_OUT_OF_RANGE:
            self.refuse(RunRefusal(error.exit_code, error.message, error.hint))
        elif rejection.kind is RejectionKind.OTHER_PROTOCOL:
            rank = rejection.node_rank
            refusal = RunRefusal(error.exit_code, error.message, error.hint, rank)
            if rank not in self.present and not self._await_spare(refusal):
                self._foreign.add(rank)  # also after a refusal: nobody needs to wait for it
        elif rejection.kind in _SECRETS:
            if member.node.may_be_of_another_job(self._me):
                return
            refusal = RunRefusal(error.exit_code, error.message, error.hint, rejection.node_rank)
            self._without_secret.setdefault(rejection.node_rank, (time.monotonic(), refusal))
        elif rejection.kind is RejectionKind.RANK_TAKEN and self.state.phase is RunPhase.WAITING:
            self._twice[member.node.identity] = rejection.node_rank
            if len(self.present) < self._me.nnodes <= len(self.present) + len(self._twice):
                hint = (
                    "every node needs a rank of its own: check what sets RANK (or --node-rank) on these two"
                )
                self.refuse(RunRefusal(error.exit_code, error.message, hint))

    def _expire(self, now: float) -> None:
        """Remove nodes that have left or gone silent."""
        if self.state.phase is not RunPhase.WAITING:
            return
        for member in self._coordinator.membership.everyone:
            silent_s = self._coordinator.silent_s(member)
            if silent_s >= self._node_timeout_s:
                if member.rank is not None:
                    self._last_seen[member.rank] = now if silent_s == float("inf") else now - silent_s
                if member.rank is not None and member.node.stand_in:
                    self._lost.add(member.rank)
                self._coordinator.remove(member)

    def _report_doubted(self) -> None:
        """Report, once per node, that it may belong to another job and therefore has to wait."""
        for member in self._coordinator.membership.doubted:
            node = member.node
            if node.identity in self._doubted:
                continue
            self._doubted.add(node.identity)
            text = Phrase(
                "node {rank}, {place}, may belong to another job: it runs {theirs!r}, node 0 runs {ours!r}; "
                "waiting {limit:g} s for another node {rank}; nodes with one --job-name do not wait",
                rank=node.node_rank,
                place=node.place,
                theirs=node.command,
                ours=self._me.command,
                limit=self._coordinator.membership.doubted_for_s,
            )
            self._log(ConsoleLine("WARN", text, "node-of-another-job"))

    def _fill(self, absent: list[int], now: float) -> list[int]:
        """Assign ranks of lost or late nodes to spares; return the ranks that are still absent."""
        spares = self._coordinator.membership.spares
        if len(absent) > len(spares) + self._most_missing:
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now
        lost = self._lost | self._awaiting_spare.keys() | set(range(self._trained, self._me.nnodes))
        late = self._enough_since is not None and now - self._enough_since >= LATE_S
        due = [rank for rank in absent if rank != self._me.node_rank and (rank in lost or late)]
        if not due or not spares:
            return absent
        # The one that answered last is most likely to be alive.
        fit = sorted(filter(self._may_replace, spares), key=self._coordinator.silent_s)
        for rank, spare in zip(due, fit, strict=False):
            self._coordinator.assign(spare, rank)
            text = Phrase(
                "node {rank} is replaced by a spare: node {spare}, {place}",
                rank=rank,
                spare=spare.node.node_rank,
                place=spare.place,
            )
            self._log(ConsoleLine("WARN", text, "node-replaced"))
        return absent_ranks(self.present, self._me.nnodes)

    @property
    def _most_missing(self) -> int:
        """How many nodes this attempt may start without; the first one needs all."""
        return self._me.nnodes - self._min_nodes if self.restarts_used else 0

    def _may_continue_without(self, absent: list[int], now: float) -> bool:
        """Return whether the job continues without these nodes, which have had the time to return."""
        if self._me.node_rank in absent or len(absent) > self._most_missing or self._enough_since is None:
            return False
        # Those that were missing before have had it. If one is back, it waited as a spare, and is here soon.
        all_back = len(self.present) >= self._trained
        waited_s = now - self._enough_since
        return waited_s >= (_SPARES_BACK_S if all_back else LATE_S) or now - self._began >= self._timeout_s

    def _may_replace(self, spare: Member) -> bool:
        """Return whether a spare is alive and agrees with the others where nodes must agree."""
        if self._coordinator.silent_s(spare) >= _DOUBTED_AFTER_S or spare.node.refusal:
            return False
        refusal = verdict.judge([*self.present.values(), spare.node], {}).refusal
        if refusal is not None and spare.node.identity not in self._unfit:
            self._unfit.add(spare.node.identity)
            text = Phrase(
                "{place} cannot replace other nodes: {reason}", place=spare.place, reason=refusal.reason
            )
            self._log(ConsoleLine("WARN", text, "spare-unfit"))
        return refusal is None

    def _doubted_s(self) -> dict[int, float]:
        """Return the nodes that may be dead, and how long they have been silent."""
        members = self._coordinator.membership.ranks.items()
        silent_s = {rank: self._coordinator.silent_s(member) for rank, member in members}
        return {rank: silent for rank, silent in silent_s.items() if silent >= _DOUBTED_AFTER_S}

    def _wait_for(self, absent: list[int], doubted_s: dict[int, float], now: float) -> None:
        """Report who is absent, and immediately who has left."""
        closed_s = {rank: now - seen for rank, seen in self._last_seen.items() if rank in absent}
        ago = {rank: float(round(seconds)) for rank, seconds in (closed_s | doubted_s).items()}
        time_is_up = bool(absent) and now - self._began >= self._timeout_s
        if absent and self._refuse_for_secrets(absent, now):
            return
        absent = sorted({*absent, *doubted_s})
        text = describe_absent(absent, self._me.nnodes, ago)
        suspicion = looks_like_processes(self.present, self._me.nnodes)
        if time_is_up:
            self._time_is_up = True
            unreplaced = [rank for rank in absent if rank in self._awaiting_spare]
            if unreplaced:
                self.refuse(self._awaiting_spare[unreplaced[0]])
                return
            hint = (
                "check the missing nodes: they may still pull their image, wait to be "
                "scheduled, or have crashed"
            )
            if suspicion:
                hint = "set WORLD_SIZE to the number of nodes, or pass --nnodes"
            elif self.master_addr_problem:
                hint = CORRECT_MASTER_ADDR
            late = Phrase("{absent}; gave up after {limit:g} s", absent=text, limit=self._timeout_s)
            reasons = filter(None, (late, suspicion, self.master_addr_problem))
            code = TopologyError.exit_code if suspicion else NodesAbsentError.exit_code
            self.refuse(RunRefusal(code, joined(reasons, "; "), hint))
            return
        news = ago.keys() - self.state.last_seen_s.keys()
        if news or now - self._reported_at >= _LOG_EVERY_S:
            self._reported_at = now
            waiting = Phrase(
                "still waiting after {waited:.0f} s: {text}", waited=now - self._began, text=text
            )
            if 0 < len(absent) <= self._most_missing and self._me.node_rank not in absent:
                waiting = Phrase(
                    "{waiting}; after {limit:g} s the job continues with the others",
                    waiting=waiting,
                    limit=LATE_S,
                )
            self._log(ConsoleLine("INFO", waiting, "rendezvous-waiting"))
            if suspicion:
                self._log(ConsoleLine("WARN", suspicion, "nodes-or-processes"))
        published = (self.state.absent, self.state.last_seen_s)
        due = news or now - self._published_at >= self._me.nnodes * _PUBLISH_EVERY_S
        if due and (tuple(absent), ago) != published:
            self._published_at = now
            self._publish(replace(self.state, absent=tuple(absent), last_seen_s=ago))

    def _refuse_for_secrets(self, absent: Sequence[int], now: float) -> bool:
        """End the roll call if all absent nodes tried to join without the secret; return whether it ended.

        It waits some seconds, in which others may join with their ranks.
        """
        lacking = [self._without_secret[rank] for rank in absent if rank in self._without_secret]
        if len(lacking) < len(absent) or now - min(since for since, _ in lacking) < _SECRETS_DOUBTED_S:
            return False
        self._foreign |= set(absent)
        self.refuse(lacking[0][1])
        return True

    def _judge(self) -> None:
        ranks = sorted(self.present)
        if len(ranks) < self._me.nnodes:  # the job continues without the others
            self._coordinator.membership.reorder(ranks)
        nodes = [self.present[rank] for rank in sorted(self.present)]
        judged = verdict.judge(nodes, self.clock_offsets_s)
        order = network_order([node.network for node in nodes])
        reordered = self._by_network and judged.refusal is None and self.restarts_used == 0
        if reordered and all(node.network for node in nodes) and order != sorted(order):
            self._coordinator.membership.reorder(order)
            nodes = [self.present[rank] for rank in sorted(self.present)]
            judged = verdict.judge(nodes, self.clock_offsets_s)
        else:
            reordered = False
        for line in verdict.table(judged.differences):
            self._log(ConsoleLine("INFO", line))
        if judged.refusal is None:
            self._coordinator.start()
        self._publish(
            replace(
                self.state,
                phase=RunPhase.REFUSED if judged.refusal else RunPhase.RUNNING,
                nnodes=len(nodes),
                absent=(),
                refusal=judged.refusal,
                warnings=judged.warnings,
                restarts_used=max(node.restarts_used for node in nodes),
                reordered=reordered,
            )
        )

    def _publish(self, state: RunState) -> None:
        self.state = state
        self._coordinator.publish(state)
