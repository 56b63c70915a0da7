"""A node during the run: it stays connected to node 0 until all know how the run ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from queue import Empty, Queue

from platform_launch.rendezvous.ending import EndKind, RunOutcome
from platform_launch.rendezvous.first_failure import last_words
from platform_launch.rendezvous.loop import ConnectionLostError, event_loop
from platform_launch.rendezvous.messages import ConsoleLine
from platform_launch.rendezvous.participant import CoordinatorReplacedError
from platform_launch.rendezvous.run.arriving import Arrived, Command, LostError, Wake, WithdrawnError
from platform_launch.rendezvous.run.leading import Lead
from platform_launch.rendezvous.run.silence import (
    SilenceNews,
    SilenceReporter,
    in_view_of,
    is_closed,
    is_lost,
    silent_after_s,
)
from platform_launch.rendezvous.run.state import LogExcerpt, NodeProgress, RunState, StopAll, TrainingEnded
from platform_launch.rendezvous.run.task import OwnProcesses, RunEnded, RunNews, RunTask
from platform_launch.rendezvous.run.texts import RequestRelay
from platform_launch.rendezvous.server import heartbeat_s
from platform_launch.text import Phrase

# A node whose processes have finished waits this long for the others, so that the job ends as one.
_LINGER_S = 30.0
_PROGRESS_EVERY_S = 2.0


class RunMembership:
    """A node's membership from the start of the run to its outcome.

    ``lead`` is node 0's, None elsewhere. ``coordinator_excerpt`` is the last output of node 0's processes.
    """

    def __init__(
        self,
        task: RunTask,
        arrived: Arrived,
        lead: Lead | None,
        own: OwnProcesses,
        commands: Queue[Command | Wake],
        emit: Callable[[RunNews], None],
    ) -> None:
        self._task = task
        self._state = arrived.state
        self._lead = lead
        self._own = own
        self._commands = commands
        self._emit = emit
        self._tail = b""
        self._finished_at = self._ended_at = float("inf")
        self._has_ended = self._is_stopping = False
        self._relay = RequestRelay(emit)
        self._silence_reporter = SilenceReporter(silent_after_s(task.node_timeout_s))
        self._progress_at, self._knows_progress = 0.0, False
        self.participant = arrived.participant
        self.coordinator_excerpt: tuple[str, ...] = ()

    def run(self) -> None:
        """Run until the launcher knows the outcome. Raises LostError, WithdrawnError and RejectedError."""
        pause_s = heartbeat_s(self._task.node.nnodes)
        while True:
            with suppress(Empty):
                command = self._commands.get(timeout=pause_s)
                if not isinstance(command, Wake):
                    self._on_command(command)
            self._exchange()
            state = self._state
            if state.ending is not None and not self._is_stopping:
                self._is_stopping = True
                self._emit(StopAll(state.ending))
            if state.outcome is not None:
                finished = self._finished_at < float("inf")
                self._emit(RunEnded(RunOutcome(0) if state.outcome.closed and finished else state.outcome))
                return
            if time.monotonic() - self._finished_at >= _LINGER_S:
                if self._lead is None:
                    self._emit(RunEnded(RunOutcome(0)))
                    return
                self._lead.closing.set()

    def _exchange(self) -> None:
        """Publish what is new here, and read what is new elsewhere. Raises LostError."""
        participant = self.participant
        self._publish_progress()
        try:
            participant.step()
        except CoordinatorReplacedError:
            raise LostError(EndKind.COORDINATOR_GONE) from None
        self._relay.step(participant)
        for problem in event_loop().problems():
            self._log("WARN", Phrase("a connection failed: {problem}", problem=problem), "connection-failed")
        excerpt = participant.state(LogExcerpt)
        self.coordinator_excerpt = excerpt.lines if excerpt is not None else self.coordinator_excerpt
        self._state = participant.state(RunState) or self._state
        if self._state.outcome is None:
            self._miss_coordinator(participant.coordinator_silent_s)

    def _publish_progress(self) -> None:
        """Publish now and then whether the processes make progress, and as soon as it is known: until then, a
        silent node stops the run.
        """
        now = time.monotonic()
        is_due = now - self._progress_at >= _PROGRESS_EVERY_S
        if not is_due and self._knows_progress:
            return
        still_s = self._still_s
        if not is_due and still_s is None:
            return
        self._progress_at, self._knows_progress = now, still_s is not None
        self.participant.publish(NodeProgress(still_s))
        tail = self._own.tail()
        if tail != self._tail:
            self._tail = tail
            self.participant.publish(LogExcerpt(last_words(tail.decode(errors="replace"))))

    @property
    def _still_s(self) -> float | None:
        return None if self._has_ended else self._own.still_s()

    def _miss_coordinator(self, silent_s: float) -> None:
        """Report that node 0 is silent; give it up if there is no progress here either. Raises LostError."""
        limit_s = self._task.node_timeout_s
        if self._has_ended:  # only the outcome is missing, which nobody waits for so long
            limit_s = silent_after_s(limit_s)
            # A node 0 that was stopped or cut off must still learn how it ended here.
            silent_s = min(silent_s, time.monotonic() - self._ended_at)
        closed_s, ended_s = self.participant.coordinator_closed_s, self.participant.coordinator_ended_s
        if is_closed(closed_s, self._still_s if closed_s else None, ended_s, limit_s):
            raise LostError(EndKind.COORDINATOR_GONE, silent_s)
        if is_lost(silent_s, self._still_s, limit_s):
            raise LostError(EndKind.COORDINATOR_SILENT, silent_s)
        news = self._silence_reporter.news(silent_s)
        if news is SilenceNews.SILENT and not self._has_ended:
            follows = in_view_of(self._still_s, limit_s)
            text, event = "node 0 has not answered for {silent:.0f} s; {follows}", "node-silent"
            if self.participant.coordinator_is_stopped:
                text = (
                    "the launcher of node 0 is stopped or stuck: no heartbeat for {silent:.0f} s; {follows}"
                )
                event = "launcher-is-silent"
            self._log("WARN", Phrase(text, silent=silent_s, follows=follows), event)
        elif news is SilenceNews.RESPONDS_AGAIN:
            self._log("INFO", "node 0 answers again", "node-heard-again")

    def _on_command(self, command: Command) -> None:
        if command is None:
            # Asked to stop. If this node's processes have finished, the others go on without it.
            if self._lead is None or self._finished_at == float("inf"):
                raise WithdrawnError
            self._lead.closing.set()
        elif isinstance(command, StopAll):
            self.participant.publish(command)
            self._is_stopping = True
        elif isinstance(command, TrainingEnded):
            ending = replace(command.ending, ended_at_s=time.time())
            self.participant.publish(replace(command, ending=ending))
            self._is_stopping = self._has_ended = True  # there is nothing left to stop
            self._ended_at = time.monotonic()
            if ending.kind is EndKind.FINISHED:
                self._finished_at = time.monotonic()
        else:
            with suppress(ConnectionLostError):  # the node that asks waits with a limit
                self._relay.pass_on(command, self.participant)

    def _log(self, level: str, text: str, event: str) -> None:
        self._emit(ConsoleLine(level, text, event))
