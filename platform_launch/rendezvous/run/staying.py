"""A node in a run that has started: it stays in touch with node 0 until all know how the run ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from queue import Empty, Queue

from platform_launch.errors import NodesAbsentError
from platform_launch.rendezvous.connecting import CoordinatorGoneError
from platform_launch.rendezvous.ending import Cause, EndKind, NodeEnding, RunOutcome
from platform_launch.rendezvous.liveness import SilenceClock
from platform_launch.rendezvous.messages import ConsoleLine, Message
from platform_launch.rendezvous.participant import Participant
from platform_launch.rendezvous.run.arriving import Arrived, heartbeat_s
from platform_launch.rendezvous.run.launcher import RunTask, Settled
from platform_launch.rendezvous.run.leading import Lead
from platform_launch.rendezvous.run.leaving import GivenUpError, LostError
from platform_launch.rendezvous.run.own_launcher import OwnLauncher
from platform_launch.rendezvous.run.relay import RequestRelay
from platform_launch.rendezvous.run.silence import (
    SILENT_S,
    SilenceNews,
    SilenceReporter,
    in_view_of,
    is_lost,
    silent_after_s,
)
from platform_launch.rendezvous.run.state import (
    LauncherSilence,
    LogExcerpt,
    NodeProgress,
    RunState,
    StopAll,
    TrainingEnded,
)
from platform_launch.rendezvous.run.texts import ReadShared, SendAnswer, SendRequest, SharedText
from platform_launch.rendezvous.store import StoreError
from platform_launch.text import Phrase

# A node whose training has finished waits this long for the others, so that the job ends as one.
_LINGER_S = 30.0
_AGAIN_S = 1.0
# Each try that node 0 accepts and does not answer leaves a thread behind.
_MOST_PAUSE_S = 10.0
_PROGRESS_EVERY_S = 2.0
# A try that fails takes no longer: where it seems to, this process was stopped meanwhile.
_LONGEST_TRY_S = 15.0


class Stay:
    """``participant`` is what takes part, another one after a connection broke; ``lead`` is that of node 0.

    ``coordinator_excerpt`` is what the training of node 0 said last.
    """

    def __init__(
        self,
        task: RunTask,
        arrived: Arrived,
        lead: Lead | None,
        launcher: OwnLauncher,
        commands: Queue[Message | None],
        emit: Callable[[Message], None],
    ) -> None:
        self._task = task
        self._me = arrived.me
        self._connector = arrived.connector
        self._state = arrived.state
        self._early = arrived.early
        self._lead = lead
        self._launcher = launcher
        self._commands = commands
        self._emit = emit
        self._published_excerpt: tuple[str, ...] = ()
        self._finished_at = float("inf")
        self._has_ended = self._is_stopping = False
        self._relay = RequestRelay(emit)
        self._untold: list[Message] = []
        self._silence = SilenceClock(time.monotonic(), _LONGEST_TRY_S)
        self._silence_reporter = SilenceReporter(silent_after_s(task.node_timeout_s))
        self._silent_coordinator = SilenceReporter(SILENT_S)
        self._failed_tries = 0
        self._try_again_at = self._progress_sent_at = 0.0
        self.participant = arrived.participant
        self.coordinator_excerpt: tuple[str, ...] = ()

    def run(self) -> None:
        """Stay until the launcher knows the outcome. Raises LostError, GivenUpError and RejectedError."""
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
            next_heartbeat = time.monotonic() + heartbeat_s(self._me.nnodes)
            state = self._in_touch()
            if state.ending is not None and not self._is_stopping:
                self._is_stopping = True
                self._emit(StopAll(state.ending))
            if state.outcome is not None:
                finished = self._finished_at < float("inf")
                self._emit(Settled(RunOutcome(0) if state.outcome.closed and finished else state.outcome))
                return
            if time.monotonic() - self._finished_at >= _LINGER_S:
                if self._lead is None:
                    self._emit(Settled(RunOutcome(0)))
                    return
                self._lead.closing.set()

    def _in_touch(self) -> RunState:
        """Hear and tell what is new, and return the state as far as it is known here. Raises LostError."""
        try:
            self._hear(self.participant)
        except StoreError:
            self._miss_coordinator(EndKind.COORDINATOR_SILENT, self._silence.observe(time.monotonic()))
            self._reconnect()
        else:
            self._silence.heard(time.monotonic())
            self._failed_tries = 0
            self._miss_coordinator(EndKind.COORDINATOR_SILENT, self.participant.coordinator_silent_s)
        return self._state

    @property
    def _still_s(self) -> float | None:
        return None if self._has_ended else self._launcher.still_s

    def _miss_coordinator(self, kind: EndKind, silent_s: float) -> None:
        """Say that node 0 is silent, and give it up when the training does not go on. Raises LostError."""
        limit_s = self._task.node_timeout_s
        if self._has_ended:  # only the outcome is missing, which nobody waits for that long
            limit_s = silent_after_s(limit_s)
        if is_lost(silent_s, self._still_s, limit_s):
            raise LostError(kind, silent_s)
        news = self._silence_reporter.news(silent_s)
        if news is SilenceNews.SILENT and not self._has_ended:
            follows = in_view_of(self._still_s, limit_s)
            text = Phrase(
                "node 0 has not answered for {silent:.0f} s; {follows}", silent=silent_s, follows=follows
            )
            self._say("WARN", text, "node-silent")
        elif news is SilenceNews.HEARD_AGAIN:
            self._say("INFO", "node 0 answers again", "node-heard-again")

    def _hear(self, participant: Participant) -> None:
        excerpt = self._launcher.excerpt
        if excerpt != self._published_excerpt:
            participant.publish(LogExcerpt(excerpt), quietly=True)
            self._published_excerpt = excerpt
        now = time.monotonic()
        if now - self._progress_sent_at >= _PROGRESS_EVERY_S:
            self._progress_sent_at = now
            participant.publish(NodeProgress(self._still_s), quietly=True)
            self._watch_launchers(participant, now)
        while self._untold:
            participant.publish(self._untold[0])
            del self._untold[0]
        participant.heartbeat()
        self._relay.step(participant)
        if self._lead is None:
            found = participant.value_of(0, LogExcerpt)
            self.coordinator_excerpt = found.lines if found is not None else self.coordinator_excerpt
        self._state = participant.state(RunState) or self._state

    def _watch_launchers(self, participant: Participant, now: float) -> None:
        """Let all know of a launcher that is silent: this node's own; that of node 0 cannot say it itself."""
        before_s = self._launcher.silent_s
        silent_s = self._launcher.observe(now)
        if max(silent_s, before_s) >= SILENT_S:
            participant.publish(LauncherSilence(silent_s))
        if self._lead is None:
            found = participant.value_of(0, LauncherSilence)
            news = self._silent_coordinator.news(found.silent_s if found is not None else 0.0)
            if news is SilenceNews.SILENT and found is not None:
                stuck = Phrase(
                    "the launcher of node 0 was stopped or is stuck: silent for {silent:.0f} s",
                    silent=found.silent_s,
                )
                self._say("WARN", stuck, "launcher-is-silent")

    def _on_command(self, command: Message | None) -> None:
        if command is None and self._finished_at < float("inf"):
            # Told to end where nothing runs any more: the others go on without this node.
            if self._lead is None:
                raise GivenUpError
            self._lead.closing.set()
        elif command is None:
            lines = self._launcher.excerpt
            killed = NodeEnding(
                EndKind.LAUNCHER_KILLED,
                self._me.node_rank,
                self._me.place,
                NodesAbsentError.exit_code,
                Cause("", lines, lines) if lines else None,
            )
            self._untold.append(StopAll(killed))
            with suppress(StoreError):
                self._hear(self.participant)
            raise GivenUpError
        elif isinstance(command, StopAll):
            self._untold.append(command)
            self._is_stopping = True
        elif isinstance(command, (SendRequest, SendAnswer, SharedText, ReadShared)):
            with suppress(StoreError):  # the next heartbeat finds it broken; whoever asks waits with a limit
                self._relay.take(command, self.participant)
        elif isinstance(command, TrainingEnded):
            ending = replace(command.ending, ended_at_s=time.time())
            self._untold.append(replace(command, ending=ending))
            self._is_stopping = self._has_ended = True  # there is nothing left to stop
            if ending.kind is EndKind.FINISHED:
                self._finished_at = time.monotonic()

    def _reconnect(self) -> None:
        now = time.monotonic()
        if now < self._try_again_at:
            return
        try:
            found = self._connector.reconnect(self.participant)
        except CoordinatorGoneError:
            raise LostError(EndKind.COORDINATOR_GONE) from None
        if found is None:
            self._failed_tries += 1
            self._try_again_at = time.monotonic() + min(_AGAIN_S * self._failed_tries, _MOST_PAUSE_S)
        else:
            self.participant.close()
            self.participant = found

    def _say(self, level: str, text: str, event: str) -> None:
        self._emit(ConsoleLine(level, text, event))
