"""One attempt on one node: the roll call, the run, and what became of it on all nodes."""

from __future__ import annotations

import select
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue

from platform_launch.console.languages import translate
from platform_launch.errors import (
    InstallationError,
    LaunchError,
    NodesAbsentError,
    TopologyError,
)
from platform_launch.events import Event, event
from platform_launch.health.finding import NodeHealth
from platform_launch.launch.attempt_phases import RUNS, Happening, Phase, after
from platform_launch.launch.outcome.node_ending import (
    TrainingOutput,
    of_hang,
    of_node,
    of_training,
    wants_port,
)
from platform_launch.launch.outcome.result import SpareNotNeededError, was_failure
from platform_launch.launch.saves import Saves
from platform_launch.launch.training_command import NodePlace, TrainingCommand
from platform_launch.launch.watched_training import LaunchContext, WatchedTraining
from platform_launch.observe.steps import highest_step
from platform_launch.rendezvous.ending import (
    Cause,
    EndKind,
    NodeEnding,
    RunOutcome,
    describe_ending,
    ending_event,
    stop_grace_s,
)
from platform_launch.rendezvous.messages import ConsoleLine
from platform_launch.rendezvous.restarts import FailedRun, NotAgain, is_young
from platform_launch.rendezvous.run.state import StopAll, TrainingEnded
from platform_launch.rendezvous.run.taking_part import TakingPart
from platform_launch.rendezvous.run.task import (
    AllHere,
    Moved,
    OwnProcesses,
    RendezvousLost,
    RunNews,
    RunTask,
    Settled,
    Standby,
)
from platform_launch.rendezvous.run.texts import AnswersReceived, RequestReceived, SharedTexts
from platform_launch.rendezvous.verdict import RunRefusal
from platform_launch.supervise import Outcome
from platform_launch.supervise.signals import Interrupted
from platform_launch.text import Phrase

# How long a node that cannot start looks for node 0, to report it.
TELL_S = 30.0


class JobMovedError(Exception):
    """The nodes meet elsewhere, and train there perhaps: this one goes there too, and leads no more."""

    def __init__(self, moved: Moved) -> None:
        super().__init__(moved.host)
        self.moved = moved


class Attempt:
    """Leads one attempt from the roll call to the outcome. For one use, in the main thread.

    ``training_at(place, restarts)`` is what this node runs once it is known as which one; ``place`` and
    ``restarts`` are then as the nodes have agreed. ``output`` is what the processes wrote
    to the log, and ``health`` what the devices of this node reported after a failure.
    """

    def __init__(
        self,
        training: TrainingCommand,
        training_at: Callable[[NodePlace, int], TrainingCommand],
        task: RunTask,
        context: LaunchContext,
    ) -> None:
        self._training = training
        self._training_at = training_at
        self._task = task
        self._context = context
        self._console = context.console
        self._inbox = context.inbox
        self._came_as = task.node.node_rank
        self._reordered = False
        self._came_to = task.master_addr
        self._heard: SimpleQueue[RunNews | None] = SimpleQueue()
        self._phase = Phase.MEETING
        self._lock = threading.Lock()
        self._lost: NodeEnding | None = None  # why, if node 0 is
        self._left: NodeEnding | None = None  # which ranks of this node ended before others failed
        self.place = NodePlace(task.node.node_rank, task.master_addr)
        self.restarts = task.node.restarts_used
        self.output = TrainingOutput(training.log_path, lambda: self._supervisor.tail)
        self.health: NodeHealth | None = None
        own = OwnProcesses(self._still_s, lambda: self._supervisor.tail)
        self._rendezvous = TakingPart(task, own, self._on_news)
        self._prepare(training)

    def _prepare(self, training: TrainingCommand) -> None:
        self._training = training
        self._watched = WatchedTraining(
            training,
            self._context,
            end=self._on_hang,
            send=self._rendezvous.send,
            on_ending=self._on_ending,
            on_exit=self._on_exit,
        )
        self._watched.prepare_watches()
        self._supervisor = self._watched.supervisor

    @property
    def hung(self) -> bool:
        """Whether this node found that the attempt hangs, and ended it."""
        return self._watched.hang is not None

    @property
    def rendezvous_port(self) -> int:
        """Where the nodes met."""
        return self._task.ports[0]

    @property
    def saves(self) -> Saves:
        """What is known of the checkpoints of this start."""
        return self._watched.saves.known

    def close(self) -> None:
        """Leave the rendezvous."""
        self._watched.close()
        self._rendezvous.close()

    def meet(self) -> None:
        """Wait for the others; then ``place`` is that of this node.

        Raises LaunchError, on all nodes the same, Interrupted, JobMovedError, and, for a spare,
        SpareNotNeededError.
        """
        try:
            self._rendezvous.start()
        except RuntimeError as problem:  # no thread is left
            raise InstallationError(
                Phrase("the rendezvous cannot be started: {problem}", problem=problem),
                "raise the limits of this container on threads and memory",
            ) from problem
        while True:
            message = self._next_news()
            if isinstance(message, ConsoleLine):
                self._print(message)
            elif isinstance(message, AllHere):
                for warning in message.warnings:
                    self._console.tell(event("nodes-differ", difference=warning))
                self._take_over()
                agree = Phrase("differ in what is warned of above" if message.warnings else "agree")
                self._console.tell(event("roll-call-complete", nnodes=message.nnodes, agree=agree))
                return
            elif isinstance(message, Standby):
                self._console.tell(event("spare-waits"))
            elif isinstance(message, Settled):
                raise SpareNotNeededError(message.outcome)
            elif isinstance(message, Moved):
                raise JobMovedError(message)
            elif isinstance(message, RunRefusal):
                error = self._error(message)
                if self._task.leads:  # it may take a while until all others have heard it
                    self._console.tell(Event(error.event, "ERROR", fields={"what": error.message}))
                raise error
            elif isinstance(message, RendezvousLost):
                raise NodesAbsentError(describe_ending(message.ending), "look at node 0")
            elif message is None:  # what went wrong was reported
                raise InstallationError(
                    "the rendezvous of this node failed", "the lines above say how; please report it"
                )

    def train(self) -> Outcome:
        """Run the processes to their end, here or elsewhere. Raises Interrupted if a signal came before."""
        self.output.begin()
        try:
            return self._watched.run()
        finally:
            self._move(Happening.ENDED)

    def not_begun(self, number: signal.Signals) -> Outcome | None:
        """Return the outcome if a signal came before the processes started; None if the nodes had not met.

        From the roll call's last word on, the others train already: they are told as later in the run.
        """
        if self._move(Happening.WITHDREW):
            ending = of_node(self._task.node, EndKind.STOPPED, 128 + number, stopped_by=number.name)
            self._rendezvous.send(StopAll(ending))
            return None
        self._move(Happening.ENDED)
        self._on_ending(number.name)
        return Outcome(128 + number, None, 0.0, self._training.log_path, number.name, ())

    def was_in_the_way(self, outcome: Outcome) -> bool:
        """Return whether the processes failed because the nodes meet on a port that they need themselves."""
        return (
            self._task.leads
            and was_failure(outcome)
            and is_young(FailedRun(highest_step(self.output.text()), outcome.duration_s))
            and any(wants_port(outcome.tail, port) for port in self._task.ports)
        )

    def settle(self, outcome: Outcome, not_again: NotAgain | None) -> RunOutcome:
        """Report how the processes ended, and return what that means for the whole job."""
        if was_failure(outcome):
            self.health = self._watched.ask_devices()
        left = self._left if outcome.stopped_by is not None else None
        ended = left or of_training(self._task.node, outcome, self.output, self.health)
        self._rendezvous.send(TrainingEnded(ended, not_again))
        alone = RunOutcome(0)
        while self._phase is not Phase.OVER:
            try:
                message = self._next_news()
            except Interrupted:
                return alone
            if isinstance(message, ConsoleLine):
                self._print(message)
            elif isinstance(message, Settled):
                ending = message.outcome.ending
                # A training may fail of the others' end before its launcher hears what that is for.
                if ending is not None and ending.kind is EndKind.HUNG:
                    self._context.reporter.clock.hung(ending.silent_s)
                self._move(Happening.SETTLED)
                return message.outcome
            elif message is None:  # the rendezvous failed when it was no longer needed for the run
                return alone
        if self._lost is None:
            return alone
        restart = outcome.exit_code != 0 and not_again is None
        return RunOutcome(NodesAbsentError.exit_code, self._lost, restart, not_again)

    def _print(self, line: ConsoleLine) -> None:
        """Print a line of the rendezvous; a line without an event belongs to the one before."""
        if line.event:
            self._console.tell(Event(line.event, line.level, fields={"what": line.text}))
        else:
            self._console.say(line.level, line.text)

    def _error(self, message: RunRefusal) -> LaunchError:
        """Return the error of the family that the exit code stands for, whichever node it comes from."""
        families = {family.exit_code: family for family in LaunchError.__subclasses__()}
        error = families.get(message.exit_code, LaunchError)(message.reason, message.hint)
        error.exit_code = message.exit_code
        if message.node not in (None, self._task.node.node_rank):
            return error.known_as("other-node-refused")
        return error.known_as("nodes-misplaced") if isinstance(error, TopologyError) else error

    def _still_s(self) -> float | None:
        """Return for how long nothing has moved on this node, None if that is unknown."""
        return self._watched.still_s(self._task.node_timeout_s / 4)

    def _next_news(self) -> RunNews | None:
        """Return the next news of the rendezvous. Raises Interrupted for a signal."""
        while True:
            try:
                return self._heard.get_nowait()
            except Empty:
                select.select([self._inbox.fd], [], [])
            self._inbox.heed()

    def _on_news(self, message: RunNews | None) -> None:
        """Act at once on what must not wait, in a thread of the rendezvous."""
        if isinstance(message, (SharedTexts, RequestReceived, AnswersReceived)):
            self._watched.receive(message)
            return
        if isinstance(message, ConsoleLine) and self._phase in RUNS:
            self._supervisor.tell(Event(message.event, message.level, fields={"what": message.text}))
            return
        if isinstance(message, AllHere):
            self._take_place(message)
            self._move(Happening.MET)
        elif isinstance(message, StopAll):
            if message.ending.kind is EndKind.FAILED:
                self._left = self._who_left(message.ending.exit_code)
            self._stop_for(message.ending)
        elif isinstance(message, Settled) and message.outcome.closed:
            self._move(Happening.CLOSED)
        elif isinstance(message, RendezvousLost) and self._phase is not Phase.MEETING:
            self._lost = message.ending
            self._move(Happening.LOST)
            self._stop_for(message.ending)
        self._heard.put(message)
        self._inbox.wake()

    def _who_left(self, exit_code: int) -> NodeEnding | None:
        """Return that the others lost their connection to a rank of this node, which ended too early."""
        line = self._watched.report_who_left()
        cause = Cause("rank_left", (line,), (line,))
        return of_node(self._task.node, EndKind.LEFT, exit_code, cause) if line else None

    def _take_over(self) -> None:
        """Say where node 0 is now, and speak as the node whose place this one takes, if it is another's."""
        rank, host = self.place.node_rank, self.place.master_addr
        if host != self._came_to:
            self._console.tell(event("job-moved", before=self._came_to, host=host))
        if rank != self._came_as:
            name = "rank-reordered" if self._reordered else "spare-stands-in"
            self._console.tell(event(name, spare=self._came_as, node=rank))
            self._console.speak_for(rank, self._training.prefix)

    def _take_place(self, message: AllHere) -> None:
        """Prepare what this node runs in its place, before anything can happen to it."""
        node = self._task.node
        self.place = NodePlace(message.node_rank, message.host)
        self.restarts, self._reordered = message.restarts_used, message.reordered
        if message.node_rank != node.node_rank:
            node = replace(node, node_rank=message.node_rank, stand_in=True)
        self._task = replace(
            self._task, node=node, spare=False, master_addr=message.host, ports=(message.port,)
        )
        self._prepare(self._training_at(self.place, self.restarts))

    def _stop_for(self, ending: NodeEnding) -> None:
        grace_s = None if ending.in_good_order else stop_grace_s(self._task.node.gpus)
        self._supervisor.stop(translate(ending_event(ending)), grace_s, ending.stopped_by)

    def _move(self, happening: Happening) -> bool:
        """Note what has happened, from any thread; tell whether it changed anything."""
        with self._lock:
            before, self._phase = self._phase, after(self._phase, happening)
            return self._phase is not before

    def _on_ending(self, reason: str) -> None:
        """A signal reached this node alone: the others end with it, in good order."""
        if reason in signal.Signals.__members__:
            self._rendezvous.send(StopAll(of_node(self._task.node, EndKind.STOPPED, 0, stopped_by=reason)))

    def _on_hang(self) -> None:
        """End this attempt on all nodes: it hangs."""
        assert self._watched.hang is not None
        ending = of_hang(self._task.node, self._watched.hang)
        self._rendezvous.send(StopAll(ending))
        self._stop_for(ending)

    def _on_exit(self, code: int) -> None:
        if code and not self.hung:
            self._rendezvous.send(StopAll(of_node(self._task.node, EndKind.FAILED, code)))
