"""A node's way to the start of a run: find node 0, join, wait until all are there and agree."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from queue import Empty, Queue

from platform_launch.errors import NodesAbsentError
from platform_launch.hardware import ports
from platform_launch.rendezvous.client import CONNECT_LIMIT_S
from platform_launch.rendezvous.connecting import Connector, Found, JoinTarget
from platform_launch.rendezvous.ending import EndKind
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.loop import ConnectionLostError
from platform_launch.rendezvous.messages import ConsoleLine
from platform_launch.rendezvous.participant import CoordinatorGoneError, NodeSession, Participant
from platform_launch.rendezvous.ranks import describe_absent
from platform_launch.rendezvous.reach import ReachStep, reach
from platform_launch.rendezvous.run.leading import Lead
from platform_launch.rendezvous.run.leaving import GivenUpError, LostError, NoPlaceError
from platform_launch.rendezvous.run.searching import Search
from platform_launch.rendezvous.run.state import PURPOSE, RunPhase, RunState, StopAll, TrainingEnded
from platform_launch.rendezvous.run.task import AllHere, Moved, RunNews, RunTask, Settled, Standby
from platform_launch.rendezvous.run.texts import TextCommand
from platform_launch.rendezvous.server import heartbeat_s
from platform_launch.rendezvous.verdict import RunRefusal
from platform_launch.text import Phrase

_SAY_FIRST_S = 2.0
_SAY_EVERY_S = 10.0
_AGAIN_S = 1.0
# While nodes gather, a node 0 that is silent for this long is looked for again, under its name: it may be
# another pod.
_SILENT_S = 10.0
_GONE_S = 1.0
# How long node 0 waits for another run on its host that needs the same MASTER_PORT, and for one that may be
# an earlier start of the same job.
_OTHER_JOB_S, _EARLIER_START_S = 5.0, 30.0
_OTHER_PORT = Phrase(
    "give one of the two jobs another MASTER_PORT, or start this one when the other has ended"
)

Command = StopAll | TrainingEnded | TextCommand | None
"""What a launcher wants; None: it is about to end."""


class Wake:
    """Among the commands: something has come from node 0."""


class _OwnTurnError(Exception):
    """Nobody has opened a rendezvous in the place of the one that was lost: it is for this node to do so."""


@dataclass(frozen=True)
class Arrived:
    """A node takes part in a run that has started, with the rank that ``me`` has."""

    me: Fingerprint
    participant: Participant
    state: RunState


class Arrival:
    """Leads to the start, or to its refusal. ``participant`` is what takes part by now, for who must leave.

    ``target`` says how this node would come to node 0, and ``elsewhere`` how to the places where others may
    have opened a rendezvous; ``obstacle`` says of one that was reached why this node does not join there.
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
        """Where this node goes, and as whom."""
        if self.lead is not None:
            own = (self.lead.port,) if self.lead.port else self._task.ports
            return JoinTarget("127.0.0.1", own, PURPOSE, self._me, self._task.secret, mark=self._task.mark)
        return self._target_at(self._task.master_addr)

    @property
    def elsewhere(self) -> list[JoinTarget]:
        """See above; empty where this node leads."""
        return [] if self.lead is not None else [self._target_at(host) for host in self._search.elsewhere]

    def obstacle(self, found: Found) -> str:
        """See above."""
        return self._search.obstacle(found)

    def _target_at(self, host: str) -> JoinTarget:
        task = self._task
        return JoinTarget(host, task.ports, PURPOSE, self._me, task.secret, self._spare, mark=task.mark)

    def run(self) -> Arrived | None:
        """Meet the others. None: the run does not start here, and the launcher knows why.

        Raises NeverReachedError, PortTakenError, RejectedError, and all of ``leaving``.
        """
        if self.lead is not None:
            self._reserve_port(self.lead)
            self.lead.open()
        self._connector = self._make_connector()
        while True:
            try:
                self.participant = self._connector.join()
                state = self._wait(self.participant)
            except _OwnTurnError:
                self._open_place()
                continue
            except (ConnectionLostError, CoordinatorGoneError):
                self._look_again()
                continue
            goes_on = state.outcome is not None and state.outcome.restart
            if self.lead is not None and state.phase is RunPhase.MOVED:
                self._emit(Moved(self.lead.moved_to, self._search.restarts))
                return None
            if not goes_on and state.phase is not RunPhase.MOVED:
                return self._conclude(self.participant, state)
            self.participant.leave()  # it comes to the next start, a moment later
            self._wait_again(lost=state.outcome is None or 0 in state.outcome.replaced)
            self._pause(_AGAIN_S)

    def _open_place(self) -> None:
        """Be node 0 from here on; the rank that this node had, if it had one, is a spare's to take."""
        task, me = self._task, self._me
        host = task.places.hosts[task.places.own or 0]
        mine = () if self._spare else (me.node_rank,)
        self._say(
            "WARN",
            Phrase(
                "node 0, {address}, is not heard: the nodes may meet here, at {host}",
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
        """Make sure that no other job on this host needs the same ports, from before the start to the end.

        An earlier start of this job may not have ended yet. Another job's node 0 learns of this one, so that
        it turns this job's nodes away. Raises NodesAbsentError.
        """
        port, began, told = self._task.master_port, time.monotonic(), False
        limit_s = _OTHER_JOB_S
        while not ports.reserve(port):
            other = lead.job_here()
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
            if not told and waited_s >= _SAY_FIRST_S:
                told = True
                self._say("WARN", Phrase("{taken}; waiting for its end", taken=taken))
            self._pause(_AGAIN_S)

    @property
    def host(self) -> str:
        """Where node 0 is, as far as this node knows."""
        return self._task.master_addr if self.lead is not None else self._connector.host

    def _conclude(self, participant: Participant, state: RunState) -> Arrived | None:
        """Say what node 0 has made of the gathering."""
        seat = participant.seat
        if state.phase is RunPhase.RUNNING and seat is not None and seat.node_rank is not None:
            rank, port = seat.node_rank, self._connector.port
            restarts, warnings = state.restarts_used, state.warnings
            self._emit(AllHere(state.nnodes, restarts, warnings, rank, self.host, port, state.reordered))
            me = replace(self._me, node_rank=rank)
            return Arrived(me, participant, state)
        if self._spare and state.outcome is not None:
            self._emit(Settled(state.outcome))
            return None
        ended = RunRefusal(NodesAbsentError.exit_code, "the run of this job has ended")
        self._emit(state.refusal or ended)
        return None

    def _look_again(self) -> None:
        """Go on without the connection that broke. Raises LostError if nothing is worth waiting for."""
        silent_s = 0.0
        if self.participant is not None:
            silent_s = self.participant.coordinator_silent_s
            self.participant.close()
        if self._spare and self._search.is_needed_no_more:
            raise LostError(EndKind.COORDINATOR_GONE)
        self._wait_again(lost=True)
        lost = Phrase("the rendezvous on node 0 broke off; looking for it again")
        if silent_s >= _SILENT_S:
            lost = Phrase("node 0 has not answered for {silent:.0f} s; looking for it again", silent=silent_s)
        self._say("WARN", lost, "rendezvous-broken")

    def _wait(self, participant: Participant) -> RunState:
        """Wait until node 0 says something final about this node."""
        began = time.monotonic()
        say_at = began + _SAY_FIRST_S
        pause_s = min(0.1 + self._me.nnodes / 2500, 0.5)
        standing_by = False
        gone: Set[int] = frozenset()
        while True:
            participant.step()
            if participant.coordinator_gone_s >= _GONE_S or participant.coordinator_silent_s >= _SILENT_S:
                raise ConnectionLostError
            state = participant.state(RunState)
            if state is not None:
                self._search.heard(state)
                if state.last_seen_s.keys() - gone:
                    say_at = 0.0
                gone = state.last_seen_s.keys()
            if state is not None and self._is_final(state, participant):
                return state
            seat = participant.seat
            self._spare = self._spare if seat is None else seat.node_rank is None
            if self._spare and seat is not None and not standing_by:
                standing_by = True
                self._emit(Standby())
            if self._spare and state is not None and state.phase is RunPhase.RUNNING:
                pause_s = heartbeat_s(self._me.nnodes)
            now = time.monotonic()
            goes_on = state is not None and state.phase is RunPhase.RUNNING and not self._spare
            if goes_on and now - began >= self._task.roll_call_timeout_s:
                raise NoPlaceError(
                    Phrase(
                        "the run of node 0, {place}, goes on without this node, which came as node {rank} "
                        "and got no place in {limit:g} s",
                        place=participant.welcome.place,
                        rank=self._me.node_rank,
                        limit=self._task.roll_call_timeout_s,
                    )
                )
            if now >= say_at and self.lead is None and not self._spare:
                say_at = now + _SAY_EVERY_S
                text = Phrase("the others are coming")
                if state is not None and state.absent:
                    text = describe_absent(state.absent, state.nnodes, state.last_seen_s)
                waiting = Phrase(
                    "connected to node 0, waiting for {waited:.0f} s: {text}", waited=now - began, text=text
                )
                self._say("INFO", waiting)
            self._pause(pause_s)

    def _is_final(self, state: RunState, participant: Participant) -> bool:
        if participant.seat is None or state.phase is RunPhase.WAITING:
            return False
        return state.phase is not RunPhase.RUNNING or participant.started

    def _wait_again(self, *, lost: bool) -> None:
        """Look for the next start, which a spare may have to wait for as long as for the first."""
        self._search.begin(lost=lost)
        self._spare = self._spare or self._task.spare  # a rank that it was given is void with that gathering
        if self._spare:
            self._connector = self._make_connector()

    def _make_connector(self) -> Connector:
        task = self._task
        return Connector(
            self.target,
            timeout_s=task.roll_call_timeout_s,
            pause=self._pause_seeking,
            say=self._emit,
            examine=self._examine,
            elsewhere=self.elsewhere,
            obstacle=self.obstacle,
            wake=lambda: self._commands.put(Wake()),
            session=self._session,
        )

    def _examine(self, me: Fingerprint) -> Fingerprint:
        """Training will need MASTER_PORT, which node 0 keeps open while the nodes gather."""
        if self.lead is not None:
            return me
        host, port = self._connector.host, self._task.master_port
        found = reach(self._connector.address, port, CONNECT_LIMIT_S)
        if found.step in (ReachStep.OPEN, ReachStep.NO_NAME_SERVER):  # a slow name server says nothing of it
            return me
        problem = Phrase(
            "reaches node 0 on port {port}, but not on MASTER_PORT: {problem}",
            port=self._connector.port,
            problem=found.in_words(host, port),
        )
        return replace(me, master_port_problem=problem)

    def _pause_seeking(self, seconds: float) -> None:
        self._pause(seconds)
        if self.lead is None and self._search.is_own_turn:
            raise _OwnTurnError

    def _pause(self, seconds: float) -> None:
        """Wait, unless the launcher is told to end or is gone."""
        try:
            command = self._commands.get(timeout=seconds)
        except Empty:
            return
        if isinstance(command, Wake):
            return
        # All nodes of a job that ran already end with this one, unless it is a spare.
        if isinstance(command, StopAll) and self._task.node.restarts_used and not self._spare:
            raise GivenUpError(command.ending)
        raise GivenUpError

    def _say(self, level: str, text: str, event: str = "rendezvous-waiting") -> None:
        self._emit(ConsoleLine(level, text, event))
