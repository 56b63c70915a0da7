"""Node 0 during the run: notices silent nodes, and collects how the run ended until all nodes know."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from platform_launch.errors import NodesAbsentError
from platform_launch.rendezvous.coordinator import Coordinator
from platform_launch.rendezvous.ending import Cause, EndKind, NodeEnding, RunOutcome, stop_grace_s
from platform_launch.rendezvous.membership import Change, ChangeKind, Member
from platform_launch.rendezvous.messages import ConsoleLine
from platform_launch.rendezvous.restarts import NotAgain
from platform_launch.rendezvous.run.deciding import decide
from platform_launch.rendezvous.run.silence import (
    BROKEN_S,
    GONE_S,
    SilenceNews,
    SilenceReporter,
    in_view_of,
    is_closed,
    is_lost,
    silent_after_s,
)
from platform_launch.rendezvous.run.state import (
    LogExcerpt,
    NodeProgress,
    RunPhase,
    RunState,
    StopAll,
    TrainingEnded,
)
from platform_launch.text import Phrase

# Beyond their grace time, nodes have this long to learn of a failure and to report their ending.
_REPORT_S = 4.5
# Only node 0 decides about a restart; on a busy machine its launcher may take long to.
_OWN_REPORT_S = 30.0
# A node that does not report and has been silent for this long has vanished.
_DEAD_S = 3.0
# A kernel closed the connection of a node that does not report: its launcher was killed. A living one would
# have connected again.
_ENDED_S = 0.5
# A spare that joins just after the run has ended would look for node 0 in vain.
_LAST_CALL_S = 5.0
# Silent nodes are checked no more often than this: each check reads the progress of all others.
_CHECK_EVERY_S = 1.0
_EXCERPT_EVERY_S = 5.0


class RunMonitor:
    """Supervises a run that has started. Call :meth:`step` often; it never waits.

    It begins with a ``state`` of the run. ``spares`` were started in addition to the nodes. ``may_move``: the
    nodes may restart without node 0, and with ``min_nodes``; None: with all.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        state: RunState,
        *,
        node_timeout_s: float,
        grace_s: float,
        log: Callable[[ConsoleLine], None] = lambda _line: None,
        spares: int = 0,
        min_nodes: int | None = None,
        may_move: bool = False,
    ) -> None:
        self._coordinator = coordinator
        self._state = state
        self._nodes: dict[int, Member] = dict(coordinator.membership.ranks)
        self._total = len(self._nodes)
        self._node_timeout_s = node_timeout_s
        self._grace_s = grace_s
        self._spares = spares
        self._most_missing = 0 if min_nodes is None else max(0, self._total - min_nodes)
        self._may_move = may_move
        self._concluded_at = 0.0
        self._reports: dict[int, NodeEnding] = {}
        self._not_again: NotAgain | None = None
        self._ended_at = 0.0
        self._ranks = frozenset(self._nodes)
        self._stop_grace_s = stop_grace_s(
            max((member.node.gpus for member in self._nodes.values()), default=0)
        )
        self._log = log
        self._silent_after_s = silent_after_s(node_timeout_s)
        self._silences: dict[int, SilenceReporter] = {}
        self._missed_at = 0.0
        self._excerpt = LogExcerpt(())
        self._excerpt_at = float("-inf")
        self._reported_at = float("-inf")
        # A newcomer takes no place while the training goes on, see _miss.
        coordinator.membership.replaced_after_s = float("inf")

    @property
    def state(self) -> RunState:
        """The state that was published last."""
        return self._state

    @property
    def outcome(self) -> RunOutcome | None:
        """The outcome of the run, once it is known."""
        return self._state.outcome

    @property
    def all_left(self) -> bool:
        """Whether every spare and every node that is not given up has read the outcome."""
        # A replaced node that returns becomes a spare; the job never has more nodes than were started.
        spares = self._coordinator.membership.spares
        if len(spares) < self._spares and time.monotonic() - self._concluded_at < _LAST_CALL_S:
            return False
        living = [spare for spare in spares if self._lives(spare)]
        return all(self._needs_nothing(member) for member in [*self._nodes.values(), *living])

    def step(self) -> None:
        """Process what has arrived, and check all nodes."""
        now = time.monotonic()
        self._publish_excerpt(now)
        for change in self._coordinator.step():
            self._handle(change, now)
        self._expire(now)
        if self.outcome is not None:
            return
        self._collect(now)
        # They gave this node up, as a node 0 that was stopped finds out when it wakes.
        left = [rank for rank, one in self._nodes.items() if self._coordinator.has_left(one)]
        if unreported := [rank for rank in left if rank not in self._reports]:
            self._stop_all(self._vanished(unreported), now)
        if self._state.ending is not None:
            self._conclude_ending(now, self._state.ending)
        elif self._reports.keys() >= self._nodes.keys():
            self._conclude(RunOutcome(0))

    def _publish_excerpt(self, now: float) -> None:
        """Publish the last lines of node 0, which the others print if it vanishes."""
        member = self._nodes.get(0)
        excerpt = self._coordinator.value_of(member, LogExcerpt) if member is not None else None
        if excerpt is not None and excerpt != self._excerpt and now - self._excerpt_at >= _EXCERPT_EVERY_S:
            self._excerpt, self._excerpt_at = excerpt, now
            self._coordinator.publish(excerpt)

    def close(self) -> None:
        """End the rendezvous while others still run: node 0 has finished and waited long enough."""
        if self.outcome is None:
            self._conclude(RunOutcome(0, closed=True))

    def _handle(self, change: Change, now: float) -> None:
        before = change.before
        if before is None or before.rank is None or self._nodes.get(before.rank) != before:
            return
        if change.kind is ChangeKind.RETURNED:
            self._nodes[before.rank] = change.member
        elif change.kind is ChangeKind.REPLACED:
            del self._nodes[before.rank]
            if before.rank not in self._reports:
                self._stop_all(
                    NodeEnding(
                        EndKind.STARTED_ANEW, before.rank, change.member.place, NodesAbsentError.exit_code
                    ),
                    now,
                )

    def _expire(self, now: float) -> None:
        """Check for silent nodes, and give up those that are lost or need not be waited for."""
        if now - self._missed_at < min(_CHECK_EVERY_S, self._silent_after_s / 4):
            return
        self._missed_at = now
        self._report_silences()
        silent = [rank for rank in self._nodes if self._is_silent(rank)]
        lost = [rank for rank in self._nodes if self._closed_s(rank) >= GONE_S]
        waited_for = [rank for rank in {*silent, *lost} if rank not in self._reports and not self._is_over]
        still_s = self._still_s() if waited_for else None
        may_be_replaced = bool(waited_for) and (still_s is None or still_s >= self._node_timeout_s / 2)
        self._coordinator.membership.replaced_after_s = (
            self._silent_after_s if may_be_replaced else float("inf")
        )
        killed = [rank for rank in waited_for if self._is_killed(rank, still_s)]
        lost = [rank for rank in waited_for if self._is_lost(self._silent_s(rank), still_s, now)]
        if killed:
            self._stop_all(self._vanished(killed, EndKind.LAUNCHER_KILLED), now)
        elif lost:
            self._stop_all(self._vanished(lost), now)
        for rank in silent:
            # Until the outcome is known, a node that never reported may be the one that the others lost.
            if rank in lost or rank in self._reports or self.outcome is not None:
                self._coordinator.remove(self._nodes.pop(rank))
        for spare in list(self._coordinator.membership.spares):
            if self._coordinator.silent_s(spare) >= self._silent_after_s or self._is_closed(spare):
                self._coordinator.remove(spare)

    def _is_lost(self, silent_s: float, still_s: float | None, now: float) -> bool:
        """Return whether all must stop for a silence; a node that just finished proves nothing."""
        if still_s is None and now - self._reported_at < self._silent_after_s:
            return False
        return is_lost(silent_s, still_s, self._node_timeout_s)

    def _is_killed(self, rank: int, still_s: float | None) -> bool:
        member = self._nodes[rank]
        closed_s, ended_s = self._coordinator.closed_s(member), self._coordinator.ended_s(member)
        return is_closed(closed_s, still_s, ended_s, self._node_timeout_s, GONE_S if ended_s else BROKEN_S)

    @property
    def _is_over(self) -> bool:
        return self._state.ending is not None or self.outcome is not None

    def _is_silent(self, rank: int) -> bool:
        member = self._nodes[rank]
        silent_s = self._coordinator.silent_s(member)
        return silent_s >= self._silent_after_s and not self._coordinator.has_left(member)

    def _still_s(self) -> float | None:
        """Return how long no responsive node has made progress; None if unknown."""
        known = []
        for rank, member in self._nodes.items():
            if rank not in self._reports and self._coordinator.silent_s(member) < _DEAD_S:
                progress = self._coordinator.value_of(member, NodeProgress)
                if progress is not None and progress.still_s is not None:
                    known.append(progress.still_s)
        return min(known, default=None)

    def _report_silences(self) -> None:
        for rank, member in self._nodes.items():
            reporter = self._silences.setdefault(rank, SilenceReporter(self._silent_after_s))
            silent_s = self._coordinator.silent_s(member)
            if rank in self._reports or self._is_over or self._coordinator.has_left(member):
                continue
            news = reporter.news(silent_s)
            who = Phrase("node {rank} ({place})", rank=rank, place=member.place)
            if news is SilenceNews.SILENT:
                follows = in_view_of(self._still_s(), self._node_timeout_s)
                if self._coordinator.is_stopped(member):
                    text = Phrase(
                        (
                            "the launcher of {who} is stopped or stuck: no heartbeat for {silent:.0f} "
                            "s; {follows}"
                        ),
                        who=who,
                        silent=silent_s,
                        follows=follows,
                    )
                    self._log(ConsoleLine("WARN", text, "launcher-is-silent"))
                    continue
                text = Phrase(
                    "{who} has been silent for {silent:.0f} s; {follows}",
                    who=who,
                    silent=silent_s,
                    follows=follows,
                )
                self._log(ConsoleLine("WARN", text, "node-silent"))
            elif news is SilenceNews.RESPONDS_AGAIN:
                self._log(ConsoleLine("INFO", Phrase("{who} responds again", who=who), "node-heard-again"))

    def _vanished(self, lost: list[int], kind: EndKind | None = None) -> NodeEnding:
        """Return the ending of nodes that are silent."""
        ranks = sorted(lost)
        members = [self._nodes[rank] for rank in ranks]
        if kind is None and all(self._has_disconnected(member) for member in members):
            kind = EndKind.LAUNCHER_KILLED
        elif kind is None and all(self._coordinator.is_stopped(member) for member in members):
            kind = EndKind.LAUNCHER_SILENT
        excerpt = self._coordinator.value_of(members[0], LogExcerpt)
        lines = excerpt.lines if excerpt is not None else ()
        return NodeEnding(
            kind or EndKind.VANISHED,
            ranks[0],
            members[0].place,
            NodesAbsentError.exit_code,
            Cause("", lines, lines) if lines else None,
            silent_s=max(
                # Before a node leaves without a report, it has not reached this one for that long.
                self._node_timeout_s
                if self._coordinator.has_left(member)
                else self._coordinator.silent_s(member)
                for member in members
            ),
            ranks=tuple(ranks),
            hosts=tuple(member.place for member in members[:8]),
            all_others=len(lost) == self._total - 1 > 1,
        )

    def _collect(self, now: float) -> None:
        # If a node is asked to stop, its peers lose their connections and may report that first.
        requests = sorted(
            self._coordinator.values(StopAll).items(), key=lambda one: not one[1].ending.in_good_order
        )
        for rank, request in requests:
            if self._state.ending is None and rank in self._nodes:
                self._stop_all(request.ending, now)
        for rank, report in self._coordinator.values(TrainingEnded).items():
            if rank not in self._reports and rank in self._nodes:
                ended_at_s = report.ending.ended_at_s - self._clock_offset_s(rank)
                self._reports[rank] = replace(report.ending, ended_at_s=ended_at_s)
                self._reported_at = now
                if rank == 0:
                    self._not_again = report.not_again

    def _stop_all(self, ending: NodeEnding, now: float) -> None:
        if self._state.ending is None and self.outcome is None:
            self._ended_at = now
            self._publish(replace(self._state, ending=ending))

    def _conclude_ending(self, now: float, ending: NodeEnding) -> None:
        waited_s = now - self._ended_at
        limit_s = _REPORT_S + (self._grace_s if ending.in_good_order else self._stop_grace_s)
        missing = [
            rank
            for rank, member in self._nodes.items()
            if rank not in self._reports and not self._coordinator.has_left(member)
        ]
        if 0 in missing and not ending.in_good_order and not self._is_silent(0):
            limit_s = max(limit_s, _OWN_REPORT_S)
        if waited_s < limit_s and not all(
            self._is_silent(rank) or self._has_disconnected(self._nodes[rank]) for rank in missing
        ):
            return
        dead = [
            rank
            for rank in missing
            if self._silent_s(rank) >= _DEAD_S or self._has_disconnected(self._nodes[rank])
        ]
        spares = self._coordinator.membership.spares
        self._conclude(
            decide(
                ending,
                self._reports,
                {address: rank for rank, one in self._nodes.items() for address in one.node.addresses},
                self._vanished(dead) if dead else None,
                lost=sorted(self._ranks - self._reports.keys()),
                spares=sum(self._lives(spare) for spare in spares) + self._most_missing,
                not_again=self._not_again,
                may_restart=0 in self._reports or self._may_move,
            )
        )

    def _lives(self, member: Member) -> bool:
        return self._coordinator.silent_s(member) < _DEAD_S and not self._is_closed(member)

    def _needs_nothing(self, member: Member) -> bool:
        """Return whether a member has read the outcome or never will; if it is cut off, it may."""
        if self._coordinator.has_left(member) or self._coordinator.ended_s(member) >= GONE_S:
            return True
        # It finds the next attempt by itself, which need not wait for it.
        return self.outcome is not None and self.outcome.restart and self._has_disconnected(member)

    def _is_closed(self, member: Member) -> bool:
        return self._coordinator.closed_s(member) >= GONE_S

    def _has_disconnected(self, member: Member) -> bool:
        return self._is_closed(member) or self._coordinator.ended_s(member) >= _ENDED_S

    def _closed_s(self, rank: int) -> float:
        return self._coordinator.closed_s(self._nodes[rank])

    def _clock_offset_s(self, rank: int) -> float:
        """Return a node's clock minus that of node 0; 0 if the difference is within its error."""
        offset_s, error_s = self._coordinator.clock_of(self._nodes[rank]) or (0.0, 0.0)
        return offset_s if abs(offset_s) > error_s else 0.0

    def _silent_s(self, rank: int) -> float:
        return self._coordinator.silent_s(self._nodes[rank])

    def _conclude(self, outcome: RunOutcome) -> None:
        self._concluded_at = time.monotonic()
        if outcome.restart:  # spares look for the next attempt by themselves
            self._spares = 0
        self._publish(replace(self._state, phase=RunPhase.ENDED, outcome=outcome))

    def _publish(self, state: RunState) -> None:
        self._state = state
        self._coordinator.publish(state)
