"""One node's way through a run: join, wait for the others, stay in touch until the run is settled."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from queue import Empty, Queue

from platform_launch.errors import NodesAbsentError
from platform_launch.rendezvous.absence import describe
from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.connecting import (
    CONNECT_LIMIT_S,
    Connector,
    CoordinatorGoneError,
    Meet,
    NeverReachedError,
)
from platform_launch.rendezvous.ending import Cause, EndKind, NodeEnding, RunOutcome, describe_ending
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.messages import ConsoleLine, Message
from platform_launch.rendezvous.participant import Participant, RejectedError
from platform_launch.rendezvous.reach import ReachStep, reach
from platform_launch.rendezvous.rejection import launch_error
from platform_launch.rendezvous.run.asking import Asking
from platform_launch.rendezvous.run.launcher import (
    AllHere,
    AnswerNode,
    AskNodes,
    CannotStart,
    LauncherAlive,
    ReadShared,
    RendezvousLost,
    RunTask,
    Settled,
    ShareText,
    Standby,
    StopAll,
    StopTraining,
    TrainingEnded,
)
from platform_launch.rendezvous.run.leading import Lead
from platform_launch.rendezvous.run.refusing import refuse
from platform_launch.rendezvous.run.silence import (
    SILENT_S,
    SilenceClock,
    SilenceNews,
    SilenceTold,
    in_view_of,
    is_lost,
    silent_after_s,
)
from platform_launch.rendezvous.run.state import (
    PURPOSE,
    LauncherSilence,
    LogExcerpt,
    NodeProgress,
    Report,
    RunPhase,
    RunRefusal,
    RunState,
    StopRequest,
    mark_of,
)
from platform_launch.rendezvous.store import PortTakenError, StoreError, StoreSilentError

_SAY_FIRST_S = 2.0
_SAY_EVERY_S = 10.0
_HEARTBEAT_S = 1.0
# A node whose training has finished waits this long for the others, so that the job ends as one.
_LINGER_S = 30.0
_AGAIN_S = 1.0
# An answer takes milliseconds. After this long a new connection is tried: on the old one TCP waits after a
# loss of packets for up to as long again as that lasted.
_ANSWER_LIMIT_S = 10.0
# Each try that node 0 accepts and does not answer leaves a thread behind.
_MOST_PAUSE_S = 10.0
_PROGRESS_EVERY_S = 2.0
_WHERE_ELSE = "end that run, or give this one another MASTER_ADDR, MASTER_PORT or rank"
# Launchers give a sign of life each second, and are looked at as often as progress is told.
_LONGEST_PAUSE_S = 4.0


class GivenUpError(Exception):
    """The launcher is gone, or was told to end, before the run began; ``ending`` is what all must end for."""

    def __init__(self, ending: NodeEnding | None = None) -> None:
        super().__init__()
        self.ending = ending


class NoPlaceError(Exception):
    """The run has started without this node, and no place in it became free in time."""


class LostError(Exception):
    """Node 0 is lost to this node."""

    def __init__(self, kind: EndKind, silent_s: float = 0.0) -> None:
        super().__init__(kind.value)
        self.kind = kind
        self.silent_s = silent_s


class TakingPart:
    """Runs in a thread of the helper process; ``commands`` brings what the launcher says, None at its end.

    ``excerpt`` is what this node's training said last, kept up to date from outside.
    """

    def __init__(
        self,
        task: RunTask,
        me: Fingerprint,
        secret: Secret | None,
        commands: Queue[Message | None],
        emit: Callable[[Message], None],
    ) -> None:
        self._task = task
        self._me = me
        self._secret = secret
        self._commands = commands
        self._emit = emit
        self._host = "127.0.0.1" if me.node_rank == 0 else task.master_addr
        self._rejoining = task.rejoining
        self._spare = task.spare
        self._lead = Lead(task, me, secret, emit) if me.node_rank == 0 else None
        self._connector = self._make_connector()
        self._participant: Participant | None = None
        self._state: RunState | None = None
        self._beside: RunState | None = None  # while this node waits
        self._published_excerpt: tuple[str, ...] = ()
        self._coordinator_excerpt: tuple[str, ...] = ()
        self._finished_at = float("inf")
        self._told_to_stop = False
        self._asking = Asking(emit)
        self._untold: list[Message] = []
        self._early: list[Message] = []
        self._silence = SilenceClock(time.monotonic())
        self._silence_told = SilenceTold(silent_after_s(task.node_timeout_s))
        self._failed_tries = 0
        self._try_again_at = self._told_progress_at = 0.0
        self._has_ended = False
        self._launcher_alive = (LauncherAlive(), time.monotonic())
        self._launcher_silence = SilenceClock(time.monotonic(), _LONGEST_PAUSE_S)
        self._launcher_heard_at = 0.0
        self._silent_launcher = SilenceTold(SILENT_S)
        self.excerpt: tuple[str, ...] = ()

    def run(self) -> None:
        """Take part from the first try to reach node 0 to the end of the run."""
        try:
            if self._lead is not None:
                self._lead.open()
                self._task = replace(self._task, rendezvous_port=self._lead.port)
                self._connector = self._make_connector()
            if self._gather():
                self._stay()
            with suppress(StoreError):
                self._present.leave()
        except (NeverReachedError, PortTakenError) as error:
            if self._rejoining:  # the training goes on; the launcher will have this tried again
                return
            self._emit(CannotStart(NodesAbsentError.exit_code, str(error), _hint_for(error)))
        except NoPlaceError as error:
            self._emit(CannotStart(NodesAbsentError.exit_code, str(error), _WHERE_ELSE))
            with suppress(StoreError):
                self._present.leave()
        except RejectedError as error:
            self._turned_away(error)
        except LostError as error:
            self._emit(RendezvousLost(self._ending_for(error)))
        except GivenUpError as error:
            self._withdraw(error.ending)
        if self._lead is not None:
            self._lead.leave()

    def hear_launcher(self, alive: LauncherAlive) -> None:
        """Take a sign of life of the launcher, from any thread."""
        self._launcher_alive = (alive, time.monotonic())

    @property
    def launcher_silent_s(self) -> float:
        """For how long the launcher has given no sign of life, as of the last heartbeat."""
        return self._launcher_silence.silent_s

    @property
    def _still_s(self) -> float | None:
        """For how long nothing has moved in the training of this node; None where that is not known."""
        alive, at = self._launcher_alive
        if alive.still_s is None or self._has_ended:
            return None
        return alive.still_s + time.monotonic() - at

    @property
    def _present(self) -> Participant:
        assert self._participant is not None
        return self._participant

    def _turned_away(self, error: RejectedError) -> None:
        refused = launch_error(error.rejection)
        if self._state is not None and self._state.phase is RunPhase.RUNNING:
            self._emit(RendezvousLost(self._ending_for(LostError(EndKind.COORDINATOR_GONE))))
        else:
            self._emit(CannotStart(refused.exit_code, refused.message, refused.hint))
        with suppress(StoreError):
            if self._participant is not None:
                self._participant.leave()

    def _withdraw(self, ending: NodeEnding | None) -> None:
        """Leave before the run begins; all others do too where this is node 0, or where all must end."""
        if self._lead is not None and ending is None:
            reason = f"node 0, {self._me.place}, was told to end before all nodes were there"
            self._lead.give_up(NodesAbsentError.exit_code, reason)
        elif self._lead is not None and ending is not None:  # the others come for the next start, and hear it
            self._lead.refuse(ending.exit_code, describe_ending(ending))
        if self._participant is not None:
            with suppress(StoreError):
                self._participant.leave()
        if self._lead is None and ending is not None:
            refuse(self._meet(), ending)

    def _gather(self) -> bool:
        """Meet the others; tell whether the run starts."""
        while True:
            self._participant = self._connector.join()
            try:
                state = self._wait(self._participant)
            except StoreError as error:
                if self._is_needed_no_more:
                    raise LostError(EndKind.COORDINATOR_GONE) from error
                self._wait_again()
                lost = (
                    f"node 0 has not answered for {error.silent_s:.0f} s"
                    if isinstance(error, StoreSilentError)
                    else "the rendezvous on node 0 broke off"
                )
                self._say("WARN", f"{lost}; looking for it again", "rendezvous-broken")
                continue
            goes_on = state.phase is RunPhase.ENDED and state.outcome is not None and state.outcome.restart
            if not goes_on or self._rejoining:
                break
            with suppress(StoreError):  # it comes to the next start, a moment later
                self._participant.leave()
            self._wait_again()
            self._pause(_AGAIN_S)
        self._state = state
        if self._rejoining and state.outcome is not None:
            self._has_ended = True
            self._conclude(state.outcome)
            return False
        seat = self._participant.seat
        if state.phase is RunPhase.RUNNING and seat is not None and seat.node_rank is not None:
            self._me = replace(self._me, node_rank=seat.node_rank)
            port, rank = self._connector.port, seat.node_rank
            self._emit(AllHere(state.nnodes, state.restarts_used, state.warnings, rank, port))
            return True
        if self._spare and state.outcome is not None:
            self._emit(Settled(state.outcome))
            return False
        ended = RunRefusal(NodesAbsentError.exit_code, ("the run of this job has ended",))
        refusal = state.refusal or ended
        self._emit(CannotStart(refusal.exit_code, "; ".join(refusal.reasons), refusal.hint, refusal.node))
        return False

    def _wait(self, participant: Participant) -> RunState:
        """Wait until node 0 says something final about this node."""
        began = time.monotonic()
        say_at = began + _SAY_FIRST_S
        heartbeat_s = min(0.1 + self._me.nnodes / 2500, 0.5)
        standing_by = False
        while True:
            participant.heartbeat()
            state = participant.state(RunState)
            self._beside = state or self._beside
            if state is not None and self._is_final(state, participant):
                return state
            seat = participant.seat
            self._spare = self._spare if seat is None else seat.node_rank is None
            if self._spare and seat is not None and not standing_by:
                standing_by = True
                self._emit(Standby())
            if self._spare and state is not None and state.phase is RunPhase.RUNNING:
                heartbeat_s = self._heartbeat_s()
            now = time.monotonic()
            goes_on = state is not None and state.phase is RunPhase.RUNNING and not self._spare
            if goes_on and not self._rejoining and now - began >= self._task.roll_call_timeout_s:
                raise NoPlaceError(
                    f"the run of node 0, {participant.announcement.place}, goes on without this node, "
                    f"which came as node {self._me.node_rank} and got no place in "
                    f"{self._task.roll_call_timeout_s:g} s"
                )
            if now >= say_at and self._lead is None and not self._spare:
                say_at = now + _SAY_EVERY_S
                text = "the others are coming"
                if state is not None and state.absent:
                    text = describe(state.absent, state.nnodes, state.last_seen_s)
                self._say("INFO", f"connected to node 0, waiting for {now - began:.0f} s: {text}")
            self._pause(heartbeat_s)

    def _is_final(self, state: RunState, participant: Participant) -> bool:
        started = mark_of(self._me.identity) in state.started
        if participant.seat is None or state.phase is RunPhase.WAITING:
            return False
        # The state may be heard before the notice of the rank that a spare was given.
        return state.phase is not RunPhase.RUNNING or (started and participant.seat.node_rank is not None)

    @property
    def _is_needed_no_more(self) -> bool:
        """Whether this is a spare of a run that is its last start."""
        beside = self._beside
        if not self._spare or beside is None or beside.phase is not RunPhase.RUNNING:
            return False
        return beside.restarts_used >= self._task.max_restarts

    def _wait_again(self) -> None:
        """Look for the next start, which a spare may have to wait for as long as for the first."""
        if self._spare:
            self._connector = self._make_connector()

    def _stay(self) -> None:
        """Stay in touch while the training runs, until the outcome is known."""
        self._silence = SilenceClock(time.monotonic())
        for command in self._early:
            self._on_command(command)
        next_heartbeat = 0.0
        while True:
            try:
                self._on_command(self._commands.get(timeout=max(0.0, next_heartbeat - time.monotonic())))
                next_heartbeat = 0.0
            except Empty:
                pass
            if time.monotonic() < next_heartbeat:
                continue
            next_heartbeat = time.monotonic() + self._heartbeat_s()
            state = self._in_touch()
            if state.ending is not None and not self._told_to_stop:
                self._told_to_stop = True
                self._emit(StopTraining(state.ending))
            if state.outcome is not None:
                self._conclude(state.outcome)
                return
            if time.monotonic() - self._finished_at >= _LINGER_S:
                if self._lead is None:
                    self._emit(Settled(RunOutcome(0)))
                    return
                self._lead.closing.set()

    def _in_touch(self) -> RunState:
        """Hear and tell what is new, and return the state as far as it is known here. Raises LostError."""
        try:
            self._hear(self._present)
        except StoreError:
            self._miss_coordinator(EndKind.COORDINATOR_SILENT, self._silence.look(time.monotonic()))
            self._reconnect()
        else:
            self._silence.heard(time.monotonic())
            self._failed_tries = 0
            self._miss_coordinator(EndKind.COORDINATOR_SILENT, self._present.coordinator_silent_s)
        assert self._state is not None
        return self._state

    def _miss_coordinator(self, kind: EndKind, silent_s: float) -> None:
        """Say that node 0 is silent, and give it up when the training does not go on. Raises LostError."""
        limit_s = self._task.node_timeout_s
        if self._has_ended:  # only the outcome is missing, which nobody waits for that long
            limit_s = silent_after_s(limit_s)
        if is_lost(silent_s, self._still_s, limit_s):
            raise LostError(kind, silent_s)
        news = self._silence_told.news(silent_s)
        if news is SilenceNews.SILENT and not self._has_ended:
            follows = in_view_of(self._still_s, limit_s)
            self._say("WARN", f"node 0 has not answered for {silent_s:.0f} s; {follows}", "node-silent")
        elif news is SilenceNews.HEARD_AGAIN:
            self._say("INFO", "node 0 answers again", "node-heard-again")

    def _heartbeat_s(self) -> float:
        """Twice a second, so that all learn of a failure at once; a thousand nodes once a second."""
        return min(0.5 + self._me.nnodes / 2000, _HEARTBEAT_S)

    def _hear(self, participant: Participant) -> None:
        excerpt = self.excerpt
        if excerpt != self._published_excerpt:
            participant.publish(LogExcerpt(excerpt), quietly=True)
            self._published_excerpt = excerpt
        now = time.monotonic()
        if now - self._told_progress_at >= _PROGRESS_EVERY_S:
            self._told_progress_at = now
            participant.publish(NodeProgress(self._still_s), quietly=True)
            self._watch_launchers(participant, now)
        while self._untold:
            participant.publish(self._untold[0])
            del self._untold[0]
        participant.heartbeat()
        self._asking.step(participant)
        if self._lead is None:
            found = participant.value_of(0, LogExcerpt)
            self._coordinator_excerpt = found.lines if found is not None else self._coordinator_excerpt
        self._state = participant.state(RunState) or self._state

    def _watch_launchers(self, participant: Participant, now: float) -> None:
        """Let all know of a launcher that is silent: this node's own; that of node 0 cannot say it itself."""
        _, heard_at = self._launcher_alive
        before_s = self._launcher_silence.silent_s
        if heard_at != self._launcher_heard_at:
            self._launcher_heard_at = heard_at
            self._launcher_silence.heard(now)
        silent_s = self._launcher_silence.look(now)
        if max(silent_s, before_s) >= SILENT_S:
            participant.publish(LauncherSilence(silent_s))
        if self._lead is None:
            found = participant.value_of(0, LauncherSilence)
            text = self._silent_launcher.news(found.silent_s if found is not None else 0.0)
            if text is SilenceNews.SILENT and found is not None:
                said = f"the launcher of node 0 was stopped or is stuck: silent for {found.silent_s:.0f} s"
                self._say("WARN", said, "launcher-is-silent")

    def _on_command(self, command: Message | None) -> None:
        if command is None and self._finished_at < float("inf"):
            # Told to end where nothing runs any more: the others go on without this node.
            if self._lead is None:
                raise GivenUpError
            self._lead.closing.set()
        elif command is None:
            killed = self._ending(EndKind.LAUNCHER_KILLED, NodesAbsentError.exit_code)
            self._untold.append(StopRequest(killed))
            with suppress(StoreError):
                self._hear(self._present)
            raise GivenUpError
        elif isinstance(command, StopAll):
            self._untold.append(StopRequest(command.ending))
            self._told_to_stop = True
        elif isinstance(command, (AskNodes, AnswerNode, ShareText, ReadShared)):
            with suppress(StoreError):  # the next heartbeat finds it broken; whoever asks waits with a limit
                self._asking.take(command, self._present)
        elif isinstance(command, TrainingEnded):
            ending = replace(command.ending, ended_at_s=time.time())
            self._untold.append(Report(ending, command.not_again))
            self._told_to_stop = self._has_ended = True  # there is nothing left to stop
            if ending.kind is EndKind.FINISHED:
                self._finished_at = time.monotonic()

    def _ending(self, kind: EndKind, exit_code: int) -> NodeEnding:
        lines = self.excerpt
        cause = Cause("", lines, lines) if lines else None
        return NodeEnding(kind, self._me.node_rank, self._me.place, exit_code, cause)

    def _ending_for(self, error: LostError) -> NodeEnding:
        lines = self._coordinator_excerpt
        return NodeEnding(
            error.kind,
            0,
            self._task.master_addr,
            NodesAbsentError.exit_code,
            Cause("", lines, lines) if lines else None,
            silent_s=error.silent_s,
        )

    def _conclude(self, outcome: RunOutcome) -> None:
        finished = self._finished_at < float("inf")
        self._emit(Settled(RunOutcome(0) if outcome.closed and finished else outcome))

    def _reconnect(self) -> None:
        now = time.monotonic()
        if now < self._try_again_at:
            return
        try:
            found = self._connector.reconnect(self._present)
        except CoordinatorGoneError:
            raise LostError(EndKind.COORDINATOR_GONE) from None
        if found is None:
            self._failed_tries += 1
            self._try_again_at = time.monotonic() + min(_AGAIN_S * self._failed_tries, _MOST_PAUSE_S)
        else:
            self._present.close()
            self._participant = found

    def _meet(self) -> Meet:
        meet = Meet(self._host, self._task.rendezvous_port, PURPOSE, self._me, self._secret, self._spare)
        signposted = self._lead is None and not self._rejoining
        return replace(meet, signpost=self._task.master_port) if signposted else meet

    def _make_connector(self) -> Connector:
        return Connector(
            self._meet(),
            timeout_s=self._task.node_timeout_s if self._rejoining else self._task.roll_call_timeout_s,
            answer_limit_s=min(_ANSWER_LIMIT_S, self._task.node_timeout_s),
            pause=self._pause,
            say=self._emit,
            examine=self._examine,
        )

    def _examine(self, me: Fingerprint) -> Fingerprint:
        """Training will need MASTER_PORT, which node 0 keeps open while the nodes gather."""
        if me.node_rank == 0 or self._rejoining or self._state is not None:
            return me
        port = self._task.master_port
        found = reach(self._host, port, CONNECT_LIMIT_S)
        if found.step in (ReachStep.OPEN, ReachStep.NO_NAME_SERVER):  # a slow name server says nothing of it
            return me
        problem = (
            f"reaches node 0 on port {self._connector.port} (INIT_MASTER_PORT), "
            f"but not on MASTER_PORT: {found.in_words(self._host, port)}"
        )
        return replace(me, master_port_problem=problem)

    def _pause(self, seconds: float) -> None:
        """Wait, unless the launcher is told to end or is gone."""
        try:
            command = self._commands.get(timeout=seconds)
        except Empty:
            return
        if command is None or not self._rejoining:
            # Of a job that trained already all nodes end with this one.
            if isinstance(command, StopAll) and self._task.node.restarts_used:
                raise GivenUpError(command.ending)
            raise GivenUpError
        self._early.append(command)

    def _say(self, level: str, text: str, event: str = "rendezvous-waiting") -> None:
        self._emit(ConsoleLine(level, text, event))


def _hint_for(error: NeverReachedError | PortTakenError) -> str:
    if isinstance(error, PortTakenError):
        return error.hint
    return "look at node 0: still pulling its image, not scheduled, crashed, or under another name or address"
