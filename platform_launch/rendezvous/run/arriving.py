"""A node until the run starts: find node 0, join, wait until all nodes have joined and agree."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from dataclasses import replace
from queue import Empty, Queue

from platform_launch.errors import NodesAbsentError
from platform_launch.hardware import ports
from platform_launch.rendezvous.client import CONNECT_LIMIT_S
from platform_launch.rendezvous.connecting import Connector, Found, JoinTarget
from platform_launch.rendezvous.ending import EndKind, NodeEnding
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.loop import ConnectionLostError
from platform_launch.rendezvous.messages import ConsoleLine
from platform_launch.rendezvous.participant import CoordinatorReplacedError, NodeSession, Participant
from platform_launch.rendezvous.ranks import describe_absent
from platform_launch.rendezvous.reach import ReachStep, reach
from platform_launch.rendezvous.run.leading import Lead
from platform_launch.rendezvous.run.searching import Search
from platform_launch.rendezvous.run.state import PURPOSE, RunPhase, RunState, StopAll, TrainingEnded
from platform_launch.rendezvous.run.task import AllJoined, Moved, RunEnded, RunNews, RunTask, Standby
from platform_launch.rendezvous.run.texts import TextCommand
from platform_launch.rendezvous.server import heartbeat_s
from platform_launch.rendezvous.verdict import RunRefusal
from platform_launch.text import Phrase
from platform_launch.values import dataclass

_LOG_FIRST_S = 2.0
_LOG_EVERY_S = 10.0
_AGAIN_S = 1.0
_NEXT_S = 0.3
# If node 0 is silent this long while nodes gather, its name is resolved again: it may be another pod now.
_SILENT_S = 10.0
_GONE_S = 1.0
# How long node 0 waits for another run on its host that uses the same MASTER_PORT, and for an earlier start
# of the same job.
_OTHER_JOB_S, _EARLIER_START_S = 5.0, 30.0
_OTHER_PORT = Phrase(
    "use another MASTER_PORT for one of the two jobs, or start this one when the other has ended"
)

Command = StopAll | TrainingEnded | TextCommand | None
"""A command of the launcher. None: the launcher is about to exit."""


class Wake:
    """Queued among the commands when a message of node 0 arrives."""


class WithdrawnError(Exception):
    """The launcher is about to exit, or was asked to stop before the run began: ``ending`` is why.

    ``for_all``: all nodes must stop with this one.
    """

    def __init__(self, ending: NodeEnding | None = None, *, for_all: bool = False) -> None:
        super().__init__()
        self.ending = ending
        self.for_all = for_all


class NoRankError(Exception):
    """The run started without this node, and no rank became free in time."""


class LostError(Exception):
    """This node lost node 0."""

    def __init__(self, kind: EndKind, silent_s: float = 0.0) -> None:
        super().__init__(kind.value)
        self.kind = kind
        self.silent_s = silent_s


class _MustLeadError(Exception):
    """The rendezvous is lost and no other node has opened a new one: this node must."""


@dataclass(frozen=True)
class Arrived:
    """The run has started, and this node takes part with the rank of ``me``."""

    me: Fingerprint
    participant: Participant
    state: RunState


class Arrival:
    """Brings this node to the start of the run, or to its refusal.

    ``participant`` is this node's membership so far. ``target`` is where node 0 is expected, ``elsewhere``
    where other nodes may have opened a rendezvous, and ``obstacle`` why this node does not join one it found.
    """

    def __init__(
        self,
        task: RunTask,
        commands: Queue[Command | Wake],
        emit: Callable[[RunNews], None],
    ) -> None:
        self._task = task
        self._me = task.node
        self._commands = commands
        self._emit = emit
        self._spare = task.spare
        self._session = NodeSession()
        self._search = Search(task, task.node)
        self.lead = Lead(task, task.node, emit) if task.leads else None
        self.participant: Participant | None = None

    @property
    def target(self) -> JoinTarget:
        """Where this node joins, and as which node."""
        if self.lead is not None:
            own = (self.lead.port,) if self.lead.port else self._task.ports
            return JoinTarget("127.0.0.1", own, PURPOSE, self._me, self._task.secret, mark=self._task.mark)
        return self._target_at(self._task.master_addr)

    @property
    def elsewhere(self) -> list[JoinTarget]:
        """See above; empty on node 0."""
        return [] if self.lead is not None else [self._target_at(host) for host in self._search.elsewhere]

    def obstacle(self, found: Found) -> str:
        """See above."""
        return self._search.obstacle(found)

    def _target_at(self, host: str) -> JoinTarget:
        task = self._task
        return JoinTarget(host, task.ports, PURPOSE, self._me, task.secret, self._spare, mark=task.mark)

    def run(self) -> Arrived | None:
        """Join the others. None: the run does not start here, and the launcher knows why.

        Raises NeverReachedError, PortInUseError, RejectedError, WithdrawnError, NoRankError and LostError.
        """
        if self.lead is not None:
            self._reserve_port(self.lead)
            self.lead.open()
        self._connector = self._make_connector()
        while True:
            try:
                self.participant = self._connector.join()
                state = self._wait(self.participant)
            except _MustLeadError:
                self._become_node_0()
                continue
            except (ConnectionLostError, CoordinatorReplacedError):
                self._search_again()
                continue
            continues = state.outcome is not None and state.outcome.restart
            if self.lead is not None and state.phase is RunPhase.MOVED:
                self._emit(Moved(self.lead.moved_to, self._search.restarts))
                return None
            if not continues and state.phase is not RunPhase.MOVED:
                return self._conclude(self.participant, state)
            self.participant.leave()  # it joins the next attempt in a moment
            self._wait_again(lost=state.outcome is None or 0 in state.outcome.replaced)
            self._pause(_NEXT_S)

    def _become_node_0(self) -> None:
        """Become node 0. The rank that this node had, if any, goes to a spare."""
        task, me = self._task, self._me
        host = task.rendezvous_hosts.hosts[task.rendezvous_hosts.own or 0]
        mine = () if self._spare else (me.node_rank,)
        self._log(
            "WARN",
            Phrase(
                ("node 0, {address}, does not respond: the nodes may connect here instead, at {host}"),
                address=task.master_addr,
                host=host,
            ),
            "place-opened",
        )
        self._task = replace(task, master_addr=host, spare=False, replaced=(*task.replaced, *mine))
        self._me = replace(me, node_rank=0, stand_in=True, restarts_used=self._search.restarts)
        self._spare = False
        self.lead = Lead(self._task, self._me, self._emit)
        self._reserve_port(self.lead)
        self.lead.open()
        self._connector = self._make_connector()

    def _reserve_port(self, lead: Lead) -> None:
        """Reserve the ports on this host for this job until it ends.

        An earlier start of this job may not have ended yet. Another job's node 0 learns of this one, so that
        it rejects this job's nodes. Raises NodesAbsentError.
        """
        port, began, reported = self._task.master_port, time.monotonic(), False
        limit_s = _OTHER_JOB_S
        while not ports.reserve(port):
            other = lead.local_job()
            if other == self._me.job:
                limit_s = _EARLIER_START_S
            waited_s = time.monotonic() - began
            taken = Phrase(
                "MASTER_PORT {port} on node 0, {place}, belongs to another run of platform-launch on this "
                "host: {holder}",
                port=port,
                place=self._me.place,
                holder=ports.reserved_by(port),
            )
            if waited_s >= min(limit_s, self._task.roll_call_timeout_s):
                raise NodesAbsentError(taken, _OTHER_PORT)
            if not reported and waited_s >= _LOG_FIRST_S:
                reported = True
                self._log("WARN", Phrase("{taken}; waiting for its end", taken=taken))
            self._pause(_AGAIN_S)

    @property
    def host(self) -> str:
        """Where node 0 is, as far as this node knows."""
        return self._task.master_addr if self.lead is not None else self._connector.host

    def _conclude(self, participant: Participant, state: RunState) -> Arrived | None:
        """Report what node 0 decided."""
        member = participant.membership
        if state.phase is RunPhase.RUNNING and member is not None and member.node_rank is not None:
            rank, port = member.node_rank, self._connector.port
            restarts, warnings = state.restarts_used, state.warnings
            self._emit(AllJoined(state.nnodes, restarts, warnings, rank, self.host, port, state.reordered))
            me = replace(self._me, node_rank=rank)
            return Arrived(me, participant, state)
        if self._spare and state.outcome is not None:
            self._emit(RunEnded(state.outcome))
            return None
        ended = RunRefusal(NodesAbsentError.exit_code, "the run of this job has ended")
        self._emit(state.refusal or ended)
        return None

    def _search_again(self) -> None:
        """Look for the rendezvous again after the connection broke. Raises LostError if that is pointless."""
        silent_s = 0.0
        if self.participant is not None:
            silent_s = self.participant.coordinator_silent_s
            self.participant.close()
        if self._spare and self._search.is_last_attempt:
            raise LostError(EndKind.COORDINATOR_GONE)
        self._wait_again(lost=True)
        lost = Phrase("the rendezvous on node 0 broke off; looking for it again")
        if silent_s >= _SILENT_S:
            lost = Phrase("node 0 has not answered for {silent:.0f} s; looking for it again", silent=silent_s)
        self._log("WARN", lost, "rendezvous-broken")

    def _wait(self, participant: Participant) -> RunState:
        """Wait until node 0 has decided about this node."""
        began = time.monotonic()
        report_at = began + _LOG_FIRST_S
        pause_s = min(0.1 + self._me.nnodes / 2500, 0.5)
        standing_by = False
        lost_ranks: Set[int] = frozenset()
        while True:
            participant.step()
            if participant.coordinator_closed_s >= _GONE_S or participant.coordinator_silent_s >= _SILENT_S:
                raise ConnectionLostError
            state = participant.state(RunState)
            if state is not None:
                self._search.receive(state)
                if state.last_seen_s.keys() - lost_ranks:
                    report_at = 0.0
                lost_ranks = state.last_seen_s.keys()
            if state is not None and self._is_final(state, participant):
                return state
            member = participant.membership
            self._spare = self._spare if member is None else member.node_rank is None
            if self._spare and member is not None and not standing_by:
                standing_by = True
                self._emit(Standby())
            if self._spare and state is not None and state.phase is RunPhase.RUNNING:
                pause_s = heartbeat_s(self._me.nnodes)
            now = time.monotonic()
            continues = state is not None and state.phase is RunPhase.RUNNING and not self._spare
            if continues and now - began >= self._task.roll_call_timeout_s:
                raise NoRankError(
                    Phrase(
                        (
                            "the run of node 0, {place}, continues without this node, which tried "
                            "to join as node {rank} for {limit:g} s"
                        ),
                        place=participant.welcome.place,
                        rank=self._me.node_rank,
                        limit=self._task.roll_call_timeout_s,
                    )
                )
            if now >= report_at and self.lead is None and not self._spare:
                report_at = now + _LOG_EVERY_S
                text = Phrase("the others are coming")
                if state is not None and state.absent:
                    text = describe_absent(state.absent, state.nnodes, state.last_seen_s)
                waiting = Phrase(
                    "connected to node 0, still waiting after {waited:.0f} s: {text}",
                    waited=now - began,
                    text=text,
                )
                self._log("INFO", waiting)
            self._pause(pause_s)

    def _is_final(self, state: RunState, participant: Participant) -> bool:
        if participant.membership is None or state.phase is RunPhase.WAITING:
            return False
        return state.phase is not RunPhase.RUNNING or participant.started

    def _wait_again(self, *, lost: bool) -> None:
        """Look for the next attempt, which a spare may have to wait for as long as for the first."""
        self._search.restart(lost=lost)
        self._spare = self._spare or self._task.spare  # a rank assigned in that gathering is void
        if self._spare:
            self._connector = self._make_connector()

    def _make_connector(self) -> Connector:
        task = self._task
        return Connector(
            self.target,
            timeout_s=task.roll_call_timeout_s,
            pause=self._pause_seeking,
            log=self._emit,
            examine=self._examine,
            elsewhere=self.elsewhere,
            obstacle=self.obstacle,
            wake=lambda: self._commands.put(Wake()),
            session=self._session,
        )

    def _examine(self, me: Fingerprint) -> Fingerprint:
        """Check MASTER_PORT, which the job needs later; node 0 keeps it open while nodes gather."""
        if self.lead is not None:
            return me
        host, port = self._connector.host, self._task.master_port
        found = reach(self._connector.address, port, CONNECT_LIMIT_S)
        if found.step in (ReachStep.OPEN, ReachStep.NO_NAME_SERVER):  # a slow name server proves nothing
            return me
        problem = Phrase(
            "reaches node 0 on port {port}, but not on MASTER_PORT: {problem}",
            port=self._connector.port,
            problem=found.describe(host, port),
        )
        return replace(me, master_port_problem=problem)

    def _pause_seeking(self, seconds: float) -> None:
        self._pause(seconds)
        if self.lead is None and self._search.must_lead:
            raise _MustLeadError

    def _pause(self, seconds: float) -> None:
        """Wait. Raises WithdrawnError if the launcher is gone or was asked to stop."""
        try:
            command = self._commands.get(timeout=seconds)
        except Empty:
            return
        if isinstance(command, Wake):
            return
        if isinstance(command, StopAll):
            # If the job has run before, all nodes stop with this one, unless it is a spare.
            for_all = self._task.node.restarts_used > 0 and not self._spare
            raise WithdrawnError(command.ending, for_all=for_all)
        raise WithdrawnError

    def _log(self, level: str, text: str, event: str = "rendezvous-waiting") -> None:
        self._emit(ConsoleLine(level, text, event))
