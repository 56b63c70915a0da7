"""One node's way through a meeting: arrive, wait for the others, stay in touch until the run is settled."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, Queue
from typing import TypeVar

from platform_launch.errors import NodesAbsentError
from platform_launch.rollcall import lines
from platform_launch.rollcall.approach import Approach, NeverReachedError
from platform_launch.rollcall.cause import Report
from platform_launch.rollcall.fingerprint import Fingerprint
from platform_launch.rollcall.guest import Guest
from platform_launch.rollcall.hosting import Hosting, PortTakenError
from platform_launch.rollcall.lines import Invitation, Message
from platform_launch.rollcall.store import End, Outcome, State

T = TypeVar("T")

_SAY_FIRST_S = 2.0
_SAY_EVERY_S = 10.0
_BEAT_S = 1.0
_SLOWEST_LOOK_S = 0.5
# A node whose training has finished waits this long for the others, so that the job ends as one.
_LINGER_S = 30.0


class GivenUpError(Exception):
    """The launcher is gone, or was told to end, before the run began."""


class Attendance:
    """Runs in a thread of the meeting process; ``commands`` brings what the launcher says, None at its end.

    ``answers`` grows with every answer of the store while ``in_touch``: by it a watchdog sees that the store
    has gone silent. ``words`` is what this node's training said last, kept up to date from outside.
    """

    def __init__(
        self,
        invitation: Invitation,
        me: Fingerprint,
        commands: Queue[Message | None],
        emit: Callable[[Message], None],
    ) -> None:
        self._me = me
        self._commands = commands
        self._emit = emit
        self._approach = Approach(invitation, me, pause=self._pause, say=self._say)
        self._hosting = Hosting(invitation, me, self._say) if me.node_rank == 0 else None
        self._look_s = min(0.1 + me.nnodes / 2500, _SLOWEST_LOOK_S)
        self._host_ticket = -1
        self._finished_at = float("inf")
        self._told_to_stop = False
        self.answers = 0
        self.in_touch = False
        self.words: tuple[str, ...] = ()
        self.last_words_of_host: tuple[str, ...] = ()

    def run(self) -> None:
        """Attend from the first try to reach node 0 to the end of the run."""
        try:
            if self._hosting is not None:
                self._hosting.open()
            if self._gather():
                self._stay()
            with suppress(RuntimeError):
                self._guest.leave()
        except (NeverReachedError, PortTakenError) as error:
            self._emit(lines.Leave(NodesAbsentError.exit_code, str(error), _hint_for(error)))
        except ConnectionRefusedError:
            self._emit(lines.Lost("node 0 no longer hosts the meeting", self.last_words_of_host))
        except GivenUpError:
            self._withdraw()
        if self._hosting is not None:
            self._hosting.leave()

    def _withdraw(self) -> None:
        if self._hosting is not None:
            reason = f"node 0, {self._me.place}, was told to end before all nodes were there"
            self._hosting.give_up(NodesAbsentError.exit_code, reason)
        if self.in_touch:
            with suppress(RuntimeError):
                if self._hosting is None:
                    self._guest.withdraw()
                else:
                    self._guest.leave()

    def _gather(self) -> bool:
        """Meet the others; tell whether the run starts."""
        while True:
            self._guest = self._approach.arrive()
            try:
                state = self._wait()
            except RuntimeError:
                self._say("WARN", "the meeting on node 0 broke off; looking for it again")
                continue
            if state.phase != "over":
                break
            self._pause(_BEAT_S)
        self.in_touch = state.phase == "running"
        if self.in_touch:
            self._host_ticket = state.tickets[0]
            self._emit(lines.Go(state.restarts_used, state.text, state.warnings))
            return True
        self._emit(lines.Leave(state.exit_code, "; ".join(state.reasons), state.hint))
        return False

    def _wait(self) -> State:
        """Wait until node 0 says something final about this node."""
        guest, began = self._guest, time.monotonic()
        beat_at, say_at = began, began + _SAY_FIRST_S
        self.in_touch = True
        while True:
            state = guest.state()
            self.answers += 1
            turned_away = state.turned_away.get(str(guest.ticket))
            if turned_away is not None:
                hint = "check MASTER_ADDR and INIT_MASTER_PORT: two jobs must not meet at one address"
                return State(
                    "refused", exit_code=NodesAbsentError.exit_code, reasons=(turned_away,), hint=hint
                )
            seated = guest.ticket in state.tickets or self._approach.rejoining
            if state.phase in ("refused", "over") or (state.phase == "running" and seated):
                return state
            now = time.monotonic()
            if now >= say_at and self._hosting is None:
                say_at = now + _SAY_EVERY_S
                text = state.text or "the others are coming"
                self._say("INFO", f"connected to node 0, waiting for {now - began:.0f} s: {text}")
            if now - beat_at >= _BEAT_S:
                beat_at = now
                guest.beat()
            self._pause(self._look_s)

    def _stay(self) -> None:
        """Stay in touch while the training runs, until the outcome is known."""
        next_beat = 0.0
        while True:
            try:
                self._on_command(self._commands.get(timeout=max(0.0, next_beat - time.monotonic())))
            except Empty:
                next_beat = time.monotonic() + self._beat_s()
                self._ask(lambda guest: guest.beat(self.words))
            end = None if self._told_to_stop else self._ask(Guest.end)
            if end is not None:
                self._told_to_stop = True
                self._emit(lines.Stop(end.reason, end.in_good_order))
            outcome = self._ask(Guest.outcome)
            if outcome is not None:
                self._conclude(outcome)
                return
            self.last_words_of_host = self._ask(lambda guest: guest.last_words_of(self._host_ticket))
            if time.monotonic() - self._finished_at >= _LINGER_S:
                if self._hosting is None:
                    self._emit(lines.Settled(0, (), restart=False))
                    return
                self._hosting.closing.set()

    def _beat_s(self) -> float:
        """Beat twice a second, so that all learn of a failure at once; a thousand nodes once a second."""
        return min(0.5 + self._me.nnodes / 2000, _BEAT_S)

    def _on_command(self, command: Message | None) -> None:
        rank, place = self._me.node_rank, self._me.place
        if command is None:
            reason = f"node {rank} ({place}) lost its launcher, which was killed"
            self._tell(End("vanished", rank, reason, NodesAbsentError.exit_code, self.words))
            raise GivenUpError
        if isinstance(command, lines.Stopping):
            reason = f"node {rank} ({place}) {command.reason}"
            self._tell(End(command.kind, rank, reason, command.exit_code, self.words))
            self._told_to_stop = True
        elif isinstance(command, lines.Ended):
            code, words = command.exit_code, command.words
            report = Report(rank, place, code, command.stopped_by, time.time(), words)
            self._ask(lambda guest: guest.report(report, command.why_not_again))
            self._told_to_stop = True  # there is nothing left to stop
            if code == 0:
                self._finished_at = time.monotonic()

    def _tell(self, end: End) -> None:
        self._ask(lambda guest: guest.ask_to_stop(end))

    def _conclude(self, outcome: Outcome) -> None:
        if outcome.closed:
            finished = self._finished_at < float("inf")
            self._emit(lines.Settled(0, (), restart=False) if finished else lines.Alone())
        else:
            self._emit(lines.Settled(outcome.exit_code, outcome.lines, outcome.restart, outcome.first_failed))

    def _ask(self, question: Callable[[Guest], T]) -> T:
        """Ask the store, over a new connection where the old one broke. A watchdog limits how long."""
        while True:
            try:
                answer = question(self._guest)
            except RuntimeError:
                found = self._approach.reconnect(self._guest)
                self._guest = found or self._guest
                if found is None:
                    time.sleep(_BEAT_S)
            else:
                self.answers += 1
                return answer

    def _pause(self, seconds: float) -> None:
        """Wait, unless the launcher is told to end or is gone."""
        try:
            self._commands.get(timeout=seconds)
        except Empty:
            return
        raise GivenUpError

    def _say(self, level: str, text: str) -> None:
        self._emit(lines.Say(level, text))


def _hint_for(error: NeverReachedError | PortTakenError) -> str:
    if isinstance(error, PortTakenError):
        return "end that process, or set INIT_MASTER_PORT to a free port on all nodes"
    return "look at node 0: still pulling its image, not scheduled, crashed, or under another name or address"
