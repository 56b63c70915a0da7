"""One attempt on one node: the roll call, the run, and its outcome on all nodes.

How far it has come is a table of phases:

JOINING ── joined ──→ RUNNING ── ended ──→ ENDED ── concluded ──→ OVER
   │                │  │                │  │
   │                │  └─ closed ─→ RUNNING_ALONE ── ended ─┐
   └── withdrew ────┼──── lost ───→ RUNNING_LOST  ── ended ─┴→ OVER
"""

from __future__ import annotations

import select
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from platform_launch.console.languages import translate
from platform_launch.errors import (
    InstallationError,
    LaunchError,
    NodesAbsentError,
    TopologyError,
)
from platform_launch.events import Event, event
from platform_launch.hardware import page_cache
from platform_launch.health.finding import NodeHealth
from platform_launch.launch.conclusion import SpareNotNeededError, was_failure
from platform_launch.launch.node_ending import (
    TrainingOutput,
    of_hang,
    of_node,
    of_training,
    wants_port,
)
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
from platform_launch.rendezvous.run.participation import Participation
from platform_launch.rendezvous.run.state import StopAll, TrainingEnded
from platform_launch.rendezvous.run.task import (
    AllJoined,
    Moved,
    OwnProcesses,
    RendezvousLost,
    RunEnded,
    RunNews,
    RunTask,
    Standby,
)
from platform_launch.rendezvous.run.texts import AnswersReceived, RequestReceived, SharedTexts
from platform_launch.rendezvous.verdict import RunRefusal
from platform_launch.supervise import Outcome
from platform_launch.supervise.signals import Interrupted
from platform_launch.text import Phrase

if TYPE_CHECKING:
    from platform_launch.observe.checkpoints import Checkpoint


# Node 0 reports a refusal before its end if the other nodes take longer than this to learn of it.
_REFUSAL_REPORT_S = 3.0


class Phase(Enum):
    """The node waits for the others, runs its processes, waits for the job's outcome, or knows it.

    ALONE: node 0 has finished, and this node continues without it. LOST: node 0 is unreachable.
    """

    JOINING = "joining"
    RUNNING = "running"
    RUNNING_ALONE = "running alone"
    RUNNING_LOST = "running, node 0 lost"
    ENDED = "ended"
    OVER = "over"


class Happening(Enum):
    """What changes the phase of an attempt.

    JOINED: all nodes have joined. WITHDREW: this node was asked to stop before that. ENDED: its processes
    have ended or were never started. CLOSED, LOST: see Phase. CONCLUDED: the outcome of the job is known.
    """

    JOINED = "joined"
    WITHDREW = "withdrew"
    ENDED = "ended"
    CLOSED = "closed"
    LOST = "lost"
    CONCLUDED = "concluded"


_NEXT: dict[tuple[Phase, Happening], Phase] = {
    (Phase.JOINING, Happening.JOINED): Phase.RUNNING,
    (Phase.JOINING, Happening.WITHDREW): Phase.OVER,
    (Phase.RUNNING, Happening.ENDED): Phase.ENDED,
    (Phase.RUNNING, Happening.CLOSED): Phase.RUNNING_ALONE,
    (Phase.RUNNING, Happening.LOST): Phase.RUNNING_LOST,
    (Phase.RUNNING_ALONE, Happening.ENDED): Phase.OVER,
    (Phase.RUNNING_LOST, Happening.ENDED): Phase.OVER,
    (Phase.ENDED, Happening.CLOSED): Phase.OVER,
    (Phase.ENDED, Happening.LOST): Phase.OVER,
    (Phase.ENDED, Happening.CONCLUDED): Phase.OVER,
}

RUNS = frozenset({Phase.RUNNING, Phase.RUNNING_ALONE, Phase.RUNNING_LOST})
"""The phases in which the node's processes run or are about to."""


def after(phase: Phase, happening: Happening) -> Phase:
    """Return the next phase. A happening in the wrong phase changes nothing."""
    return _NEXT.get((phase, happening), phase)


class JobMovedError(Exception):
    """The rendezvous moved to another host: this node joins there, and is no longer node 0."""

    def __init__(self, moved: Moved) -> None:
        super().__init__(moved.host)
        self.moved = moved


class Attempt:
    """Runs one attempt from the roll call to the outcome. For one use, in the main thread.

    ``training_at(place, restarts)`` is what this node runs once its rank is known; ``place`` and ``task`` are
    then as the nodes have agreed. ``output`` is what the processes wrote to the log, and ``health`` the state
    of this node's devices after a failure.
    """

    def __init__(
        self,
        training: TrainingCommand,
        training_at: Callable[[NodePlace, int], TrainingCommand],
        task: RunTask,
        context: LaunchContext,
    ) -> None:
        self.task = task
        self._training_at = training_at
        self._context = context
        self._console = context.console
        self._inbox = context.inbox
        self._launched_rank = task.node.node_rank
        self._reordered = False
        self._launched_host = task.master_addr
        self._news: SimpleQueue[RunNews | None] = SimpleQueue()
        self._phase = Phase.JOINING
        self._lock = threading.Lock()
        self._lost: NodeEnding | None = None  # the reason, if node 0 is lost
        self._refusal_report: threading.Timer | None = None
        self._early_exit: NodeEnding | None = None  # ranks of this node that exited before others failed
        self.place = NodePlace(task.node.node_rank, task.master_addr, task.node.nnodes)
        self.output = TrainingOutput(
            training.log_path, lambda: self._supervisor.tail, lambda: self._training.exit_file.reported
        )
        self.health: NodeHealth | None = None
        own = OwnProcesses(self._still_s, lambda: self._supervisor.tail)
        self._rendezvous = Participation(task, own, self._on_news)
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
        self._supervisor = self._watched.supervisor

    @property
    def hung(self) -> bool:
        """Whether this node detected that the attempt hangs, and stopped it."""
        return self._watched.hang is not None

    @property
    def saves(self) -> Saves:
        """What is known about the checkpoints of this attempt."""
        return self._watched.saves.known

    def newest_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint that this start wrote."""
        return self._watched.saves.newest_written()

    def close(self) -> None:
        """Leave the rendezvous; node 0 waits until the others know the outcome."""
        self._watched.close()
        self._rendezvous.close()
        if self._refusal_report is not None:
            self._refusal_report.cancel()

    def join(self) -> None:
        """Wait until all nodes have joined; ``place`` is then final.

        Raises LaunchError, on all nodes the same, Interrupted, JobMovedError, and, for a spare,
        SpareNotNeededError.
        """
        try:
            self._rendezvous.start()
        except RuntimeError as problem:  # no thread can be started
            raise InstallationError(
                Phrase("the rendezvous cannot be started: {problem}", problem=problem),
                "raise the limits of this container on threads and memory",
            ) from problem
        while True:
            message = self._next_news()
            if isinstance(message, ConsoleLine):
                self._print(message)
            elif isinstance(message, AllJoined):
                for warning in message.warnings:
                    self._console.report(event("nodes-differ", difference=warning))
                self._announce_place()
                self._console.report(_complete_event(message))
                return
            elif isinstance(message, Standby):
                self._console.report(event("spare-waits"))
                page_cache.warm(self._training.packages, self._training.script)
            elif isinstance(message, RunEnded):
                raise SpareNotNeededError(message.outcome)
            elif isinstance(message, Moved):
                raise JobMovedError(message)
            elif isinstance(message, RunRefusal):
                error = self._error(message)
                if self.task.leads:
                    self._report_if_waiting(error)
                raise error
            elif isinstance(message, RendezvousLost):
                raise NodesAbsentError(describe_ending(message.ending), "check node 0")
            elif message is None:  # the error has been reported
                raise InstallationError(
                    "the rendezvous of this node failed", "see the lines above; please report it"
                )

    def _report_if_waiting(self, error: LaunchError) -> None:
        """Report an error now if it takes a while until the others know: the command shows it at its end."""
        refused = Event(error.event, "ERROR", fields={"what": error.message})
        self._refusal_report = threading.Timer(_REFUSAL_REPORT_S, self._console.report, [refused])
        self._refusal_report.daemon = True
        self._refusal_report.start()

    def train(self) -> Outcome:
        """Run the processes until they exit or are stopped. Raises Interrupted for an earlier signal."""
        self.output.begin()
        try:
            return self._watched.run()
        finally:
            self._advance(Happening.ENDED)

    def not_begun(self, number: signal.Signals) -> Outcome | None:
        """Return the outcome if a signal came before the processes started; None if not all had joined.

        Once the roll call is complete, the others run already: they are informed as during the run.
        """
        if self._advance(Happening.WITHDREW):
            ending = of_node(self.task.node, EndKind.STOPPED, 128 + number, stopped_by=number.name)
            self._rendezvous.send(StopAll(ending))
            return None
        self._advance(Happening.ENDED)
        self._on_ending(number.name)
        return Outcome(128 + number, None, 0.0, self._training.log_path, number.name, ())

    def was_in_the_way(self, outcome: Outcome) -> bool:
        """Return whether the processes failed because the rendezvous uses a port that they need."""
        return (
            self.task.leads
            and was_failure(outcome)
            and is_young(FailedRun(highest_step(self.output.text()), outcome.duration_s))
            and any(wants_port(outcome.tail, port) for port in self.task.ports)
        )

    def conclude(self, outcome: Outcome, not_again: NotAgain | None) -> RunOutcome:
        """Report how the processes ended, and return the outcome of the whole job."""
        if was_failure(outcome):
            self.health = self._watched.check_devices()
        early_exit = self._early_exit if outcome.stopped_by is not None else None
        ended = early_exit or of_training(self.task.node, outcome, self.output, self.health)
        self._rendezvous.send(TrainingEnded(ended, not_again))
        alone = RunOutcome(0)
        while self._phase is not Phase.OVER:
            try:
                message = self._next_news()
            except Interrupted:
                return alone
            if isinstance(message, ConsoleLine):
                self._print(message)
            elif isinstance(message, RunEnded):
                self._context.reporter.clock.decided()
                ending = message.outcome.ending
                # The processes may fail because others ended before this launcher learns why they did.
                if ending is not None and ending.kind is EndKind.HUNG:
                    self._context.reporter.clock.hung(ending.silent_s)
                self._advance(Happening.CONCLUDED)
                return message.outcome
            elif message is None:  # the rendezvous failed when it was no longer needed
                return alone
        if self._lost is None:
            return alone
        restart = outcome.exit_code != 0 and not_again is None
        return RunOutcome(NodesAbsentError.exit_code, self._lost, restart, not_again)

    def _print(self, line: ConsoleLine) -> None:
        """Print a line of the rendezvous; a line without an event belongs to the one before."""
        if line.event:
            self._console.report(Event(line.event, line.level, fields={"what": line.text}))
        else:
            self._console.print(line.level, line.text)

    def _error(self, message: RunRefusal) -> LaunchError:
        """Return an error of the family with that exit code, whichever node it comes from."""
        families = {family.exit_code: family for family in LaunchError.__subclasses__()}
        error = families.get(message.exit_code, LaunchError)(message.reason, message.hint)
        error.exit_code = message.exit_code
        if message.node not in (None, self.task.node.node_rank):
            return error.known_as("other-node-refused")
        return error.known_as("nodes-misplaced") if isinstance(error, TopologyError) else error

    def _still_s(self) -> float | None:
        """Return how long this node has made no progress, None if unknown."""
        return self._watched.still_s(self.task.node_timeout_s / 4)

    def _next_news(self) -> RunNews | None:
        """Return the next news of the rendezvous. Raises Interrupted for a signal."""
        while True:
            try:
                return self._news.get_nowait()
            except Empty:
                select.select([self._inbox.fd], [], [])
            self._inbox.check()

    def _on_news(self, message: RunNews | None) -> None:
        """Handle what must not wait, in a thread of the rendezvous; queue the rest."""
        if isinstance(message, (SharedTexts, RequestReceived, AnswersReceived)):
            self._watched.receive(message)
            return
        if isinstance(message, ConsoleLine) and self._phase in RUNS:
            self._supervisor.report(Event(message.event, message.level, fields={"what": message.text}))
            return
        if isinstance(message, AllJoined):
            self._prepare_place(message)
            self._advance(Happening.JOINED)
        elif isinstance(message, StopAll):
            if message.ending.kind is EndKind.FAILED:
                self._early_exit = self._early_exit_ending(message.ending.exit_code)
            self._stop_for(message.ending)
        elif isinstance(message, RunEnded) and message.outcome.closed:
            self._advance(Happening.CLOSED)
        elif isinstance(message, RendezvousLost) and self._phase is not Phase.JOINING:
            self._lost = message.ending
            self._advance(Happening.LOST)
            self._stop_for(message.ending)
        self._news.put(message)
        self._inbox.wake()

    def _early_exit_ending(self, exit_code: int) -> NodeEnding | None:
        """Return the ending if ranks of this node exited early and others lost their connections to them."""
        line = self._watched.report_early_exits()
        cause = Cause("rank_left", (line,), (line,))
        return of_node(self.task.node, EndKind.LEFT, exit_code, cause) if line else None

    def _announce_place(self) -> None:
        """Report where node 0 is now and who is missing, and log with this node's new rank, if it has one."""
        rank, host, launched = self.place.node_rank, self.place.master_addr, self.task.node.nnodes
        if host != self._launched_host:
            self._console.report(event("job-moved", before=self._launched_host, host=host))
        fewer = self.place.nnodes < launched
        if fewer:
            batch = self._training.batch_note
            self._console.report(event("fewer-nodes", nodes=self.place.nnodes, nnodes=launched, batch=batch))
        if rank != self._launched_rank:
            name = "rank-reordered" if self._reordered or fewer else "spare-stands-in"
            self._console.report(event(name, spare=self._launched_rank, node=rank))
            self._console.act_as(rank, self._training.prefix)

    def _prepare_place(self, message: AllJoined) -> None:
        """Prepare what this node runs with its rank, before any other news is handled."""
        node = self.task.node
        self.place = NodePlace(message.node_rank, message.host, message.nnodes)
        self._reordered = message.reordered
        if message.node_rank != node.node_rank:
            node = replace(node, node_rank=message.node_rank, stand_in=True)
        self.task = replace(
            self.task,
            node=replace(node, restarts_used=message.restarts_used),
            spare=False,
            trained=message.nnodes,
            master_addr=message.host,
            ports=(message.port,),
        )
        self._prepare(self._training_at(self.place, message.restarts_used))

    def _stop_for(self, ending: NodeEnding) -> None:
        grace_s = None if ending.in_good_order else stop_grace_s(self.task.node.gpus)
        self._supervisor.stop(translate(ending_event(ending)), grace_s, ending.stopped_by)

    def _advance(self, happening: Happening) -> bool:
        """Record a happening, from any thread; return whether it changed the phase."""
        with self._lock:
            before, self._phase = self._phase, after(self._phase, happening)
            return self._phase is not before

    def _on_ending(self, reason: str) -> None:
        """A signal reached this node: the others stop too, without counting a failure."""
        if reason in signal.Signals.__members__:
            self._rendezvous.send(StopAll(of_node(self.task.node, EndKind.STOPPED, 0, stopped_by=reason)))

    def _on_hang(self) -> None:
        """Stop this attempt on all nodes: it hangs."""
        assert self._watched.hang is not None
        ending = of_hang(self.task.node, self._watched.hang)
        self._rendezvous.send(StopAll(ending))
        self._stop_for(ending)

    def _on_exit(self, code: int) -> None:
        if code and not self.hung:
            self._rendezvous.send(StopAll(of_node(self.task.node, EndKind.FAILED, code)))


def _complete_event(message: AllJoined) -> Event:
    """Return the event for a complete roll call; --min-nodes may have left this node alone."""
    nnodes = message.nnodes
    if nnodes == 1:
        nodes = Phrase("only this node is left")
    elif message.warnings:
        nodes = Phrase("all {nnodes} nodes are connected, with the differences listed above", nnodes=nnodes)
    else:
        nodes = Phrase("all {nnodes} nodes are connected, and their configurations match", nnodes=nnodes)
    return event("roll-call-complete", nnodes=nnodes, nodes=nodes)
