"""One start of a training on one node: the roll call, the run, and what became of it on all nodes."""

from __future__ import annotations

import select
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock

from platform_launch.errors import (
    InstallationError,
    LaunchError,
    NodesAbsentError,
)
from platform_launch.node.link import Link
from platform_launch.node.said import Said
from platform_launch.rollcall import lines
from platform_launch.rollcall.fingerprint import Fingerprint
from platform_launch.rollcall.lines import Invitation, Message, Settled
from platform_launch.supervise import Command, Outcome, Supervisor
from platform_launch.supervise.signals import SignalInbox

# When a node has failed, all have stopped three seconds later; to hear of it takes up to one.
_STOP_GRACE_S = 1.5
_MOST_REJOINS = 3

ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})


@dataclass(frozen=True)
class Training:
    """What a supervisor needs to run a training."""

    command: Command
    log_path: Path
    prefix: str
    grace_s: float


class Interrupted(Exception):  # noqa: N818 - a signal, not an error
    """A signal that ends came while no training was running."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class Attempt:
    """Leads one start from the roll call to the outcome. For one use, in the main thread.

    ``inbox`` collects signals while no training runs; ``say(level, text)`` takes lines for the user; ``said``
    is what the training put into the log.
    """

    def __init__(
        self,
        training: Training,
        invitation: Invitation,
        inbox: SignalInbox,
        say: Callable[[str, str], None],
    ) -> None:
        self._training = training
        self._invitation = invitation
        self._inbox = inbox
        self._say = say
        self._heard: SimpleQueue[Message | None] = SimpleQueue()
        self._lost: lines.Lost | None = None
        self._alone = False
        self._started = self._running = False
        self._rejoins = 0
        self._hosting = Fingerprint.from_json(invitation.fingerprint).node_rank == 0
        self._lock = Lock()
        self.said = Said(training.log_path)
        self._supervisor = Supervisor(
            training.command,
            log_path=training.log_path,
            prefix=training.prefix,
            grace_s=training.grace_s,
            on_ending=self._on_ending,
            on_exit=self._on_exit,
        )
        self._link = self._connect(invitation)

    def close(self) -> None:
        """Take leave of the meeting."""
        self._link.close()

    def meet(self) -> int:
        """Wait for the others; return how often this job was started again before.

        Raises LaunchError, on all nodes the same, and Interrupted.
        """
        while True:
            message = self._next_message()
            if isinstance(message, lines.Say):
                self._say(message.level, message.text)
            elif isinstance(message, lines.Go):
                for warning in message.warnings:
                    self._say("WARN", f"not the same on all nodes: {warning}")
                agree = "differ in what is warned of above" if message.warnings else "agree"
                self._say("SUCCESS", f"roll call: {message.text}, and they {agree}; starting training")
                return message.restarts_used
            elif isinstance(message, lines.Leave):
                if self._hosting:  # it may take a while until all others have heard it
                    self._say("ERROR", message.reason)
                raise _error(message)
            elif isinstance(message, lines.Lost):
                self._say("WARN", f"{message.reason}: looking for the meeting again")
                self._link.close()
                self._heard = SimpleQueue()  # without the end of that process
                self._link = self._connect(self._invitation)
            elif message is None:
                raise InstallationError(
                    "the process that meets the other nodes ended by itself; its last lines are above",
                    "see that this interpreter can import torch, or pass --no-roll-call",
                )

    def train(self) -> Outcome:
        """Run the training to its end, here or elsewhere. Raises Interrupted when a signal came before."""
        self._heed_signals()
        self.said.begin()
        try:
            return self._supervisor.run()
        finally:
            with self._lock:
                self._running = False

    def settle(self, outcome: Outcome, why_not_again: str) -> Settled:
        """Tell how the training ended, and return what that means for the whole job."""
        words = self.said.why() if outcome.exit_code else ()
        self._link.send(lines.Ended(outcome.exit_code, outcome.stopped_by, words, why_not_again))
        own_code = Settled(0, (), restart=False)
        while not self._alone and self._lost is None:
            try:
                message = self._next_message()
            except Interrupted:
                return own_code
            if isinstance(message, Settled):
                return message
            if message is None:  # the meeting process broke when it was no longer needed for the run
                return own_code
        if self._lost is None:
            return own_code
        told = (self._lost.reason, *(f"  | {line}" for line in self._lost.words))
        finished = outcome.exit_code == 0
        restart = not finished and not why_not_again
        return Settled(NodesAbsentError.exit_code, told, restart, first_failed=0)

    def _connect(self, invitation: Invitation) -> Link:
        return Link(invitation, self._training.command.env, self._on_message)

    def _next_message(self) -> Message | None:
        """Return the next message of the meeting. Raises Interrupted for a signal."""
        while True:
            try:
                return self._heard.get_nowait()
            except Empty:
                select.select([self._inbox.fd], [], [])
            self._heed_signals()

    def _heed_signals(self) -> None:
        for number in self._inbox.take():
            if number in ENDING:
                raise Interrupted(number)

    def _on_message(self, message: Message | None) -> None:
        """Act at once on what must not wait, in the thread of the link."""
        if isinstance(message, lines.Go):
            with self._lock:
                self._started = self._running = True
        elif isinstance(message, lines.Stop):
            self._supervisor.stop(message.reason, None if message.in_good_order else _STOP_GRACE_S)
        elif isinstance(message, lines.Alone):
            self._alone = True
        elif isinstance(message, lines.Lost):
            self._on_lost(message)
        elif message is None and self._rejoin():
            return
        self._heard.put(message)
        self._inbox.wake()

    def _on_lost(self, message: lines.Lost) -> None:
        with self._lock:
            if self._started:
                self._lost = message
                self._supervisor.stop(message.reason, _STOP_GRACE_S)

    def _rejoin(self) -> bool:
        """Start another meeting process where ours was killed during the run, which is no reason to stop."""
        with self._lock:
            if not self._running or self._lost is not None or self._alone:
                return False
        if self._rejoins == _MOST_REJOINS or self._hosting:
            self._on_lost(lines.Lost("the process that holds the meeting was killed on this node", ()))
            return False
        self._rejoins += 1
        self._link = self._connect(replace(self._invitation, rejoining=True))
        self._supervisor.spare(self._link.pid)
        return True

    def _on_ending(self, reason: str) -> None:
        """A signal reached this node alone: the others end with it, in good order."""
        if reason in signal.Signals.__members__:
            self._link.send(lines.Stopping("asked", f"was told to end ({reason})", 0))

    def _on_exit(self, code: int) -> None:
        if code:
            reason = f"failed: its training ended with exit code {code}"
            self._link.send(lines.Stopping("failed", reason, code))


def _error(message: lines.Leave) -> LaunchError:
    """Return the error of the family that the exit code stands for, whichever node it comes from."""
    families = {family.exit_code: family for family in LaunchError.__subclasses__()}
    return families.get(message.exit_code, LaunchError)(message.reason, message.hint)
