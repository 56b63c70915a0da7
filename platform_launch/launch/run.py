"""The way of one node through a job of several: meet, train, settle, and perhaps once more."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from platform_launch.console import Console
from platform_launch.errors import LaunchError, NodesAbsentError, UnfitNodeError
from platform_launch.events import event
from platform_launch.launch.attempt import TELL_S, Attempt, JobMovedError
from platform_launch.launch.exit_file import ExitFile
from platform_launch.launch.outcome import Result, tell_outcome
from platform_launch.launch.run_report import RunReporter
from platform_launch.launch.training_command import STOP, NodePlace, TrainingCommand
from platform_launch.observe.steps import highest_step
from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.ending import EndKind, RunOutcome
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.restarts import FailedRun, NotAgain, NotAgainKind, why_not_again
from platform_launch.rendezvous.run.launcher import RunTask
from platform_launch.rendezvous.run.places import Places
from platform_launch.supervise import Command, Outcome
from platform_launch.supervise.signals import Interrupted, SignalInbox

# One that is free, which node 0 tells the others on MASTER_PORT.
ANY_PORT = 0


@dataclass(frozen=True)
class RendezvousSettings:
    """Where the rendezvous is, and the user's settings for it. ``max_restarts`` of node 0 counts for all."""

    master_addr: str
    master_port: int
    port: int
    roll_call_timeout_s: float = 600.0
    node_timeout_s: float = 60.0
    max_restarts: int = 0
    secret: Secret | None = None
    spares: int = 0
    places: Places = field(default_factory=Places)


def run_together(
    training_at: Callable[[NodePlace], TrainingCommand],
    fingerprint: Fingerprint,
    settings: RendezvousSettings,
    console: Console,
    inbox: SignalInbox,
    reporter: RunReporter,
) -> Result:
    """Run a node's training together with those of the other nodes. Main thread only.

    ``training_at`` gives what this node runs in the place of a node; a spare waits for one. Raises
    LaunchError when the nodes cannot start, on all of them the same, Interrupted when a signal ends this node
    before they have met, and SpareNotNeededError. A training that finished here keeps its exit code 0
    whatever happens elsewhere.
    """
    failed: list[FailedRun] = []
    restarts = 0
    moved = False
    replaced: tuple[int, ...] = ()
    lost = False
    place = NodePlace(fingerprint.node_rank, settings.master_addr)
    training = training_at(place)
    is_spare = place.node_rank >= fingerprint.nnodes
    console.tell(
        event(
            "roll-call-opened",
            nnodes=fingerprint.nnodes,
            master_addr=settings.master_addr,
            port=settings.port,
            limit_s=settings.roll_call_timeout_s,
        )
    )
    while True:
        task = _task(fingerprint, settings, training, restarts)
        task = replace(task, spare=is_spare, replaced=replaced, lost=lost)
        attempt = Attempt(
            training,
            lambda found, earlier: training_at(found).started_again(earlier),
            task,
            inbox,
            console,
            reporter,
        )
        try:
            try:
                outcome = _trained(attempt)
            except JobMovedError as elsewhere:
                settings = replace(settings, master_addr=elsewhere.moved.host)
                restarts = max(restarts, elsewhere.moved.restarts_used)
                is_spare = is_spare or fingerprint.node_rank == 0  # that rank is another's there
                lost = True
                continue
            restarts, is_spare = attempt.restarts, False
            # It may have moved to another place and back, which a comparison of places does not show.
            settings = replace(settings, master_addr=attempt.place.master_addr)
            if attempt.place != place:
                place = attempt.place
                stand_in = fingerprint.stand_in or place.node_rank != fingerprint.node_rank
                fingerprint = replace(fingerprint, node_rank=place.node_rank, stand_in=stand_in)
                training = training_at(place)
            rank = place.node_rank
            failed.append(FailedRun(highest_step(attempt.output.text()), outcome.duration_s))
            not_again = why_not_again(failed, restarts - moved, settings.max_restarts)
            if not moved and attempt.was_in_the_way(outcome):
                moved, not_again = True, None
                failed.clear()
                console.tell(event("port-given-up", port=settings.port))
                settings = replace(settings, port=ANY_PORT)
            if attempt.hung and training.hangs and training.hangs.on_hang == STOP:
                not_again = NotAgain(NotAgainKind.HANG)
            settled = attempt.settle(outcome, not_again)
        finally:
            attempt.close()
        if settled.restart and rank in settled.bad:
            console.tell(event("node-left-out"))
        if not settled.restart or rank in settled.bad:
            code, first_failed = exit_code(outcome, settled, rank), settled.first_failed
            cost = reporter.clock.so_far()
            return Result(code, outcome, place, settled, restarts, first_failed, cost, attempt.health)
        restarts += 1
        replaced = settled.replaced
        lost = lost_node_0(settled)
        tell_outcome(settled, console)
        if lost and settings.spares and settings.places.stays:
            limit_s = settings.roll_call_timeout_s
            console.tell(event("job-stays", reason=settings.places.stays, limit_s=limit_s))
        most = max(restarts, settings.max_restarts)
        console.tell(event("nodes-restart", restart=restarts, max_restarts=most))


def lost_node_0(settled: RunOutcome) -> bool:
    """Tell whether a run ended without node 0, so that it may not come to the next start."""
    kind = settled.ending.kind if settled.ending is not None else None
    return 0 in settled.replaced or kind in (EndKind.COORDINATOR_GONE, EndKind.COORDINATOR_SILENT)


def _trained(attempt: Attempt) -> Outcome:
    """Meet the others and train; return how it ended here."""
    try:
        attempt.meet()
        return attempt.train()
    except Interrupted as interrupted:
        outcome = attempt.not_begun(interrupted.number)
        if outcome is None:
            raise
        return outcome


def tell(
    fingerprint: Fingerprint,
    settings: RendezvousSettings,
    environment: Mapping[str, str],
    console: Console,
    inbox: SignalInbox,
) -> None:
    """Tell the other nodes that this one cannot start (``Fingerprint.refusal``); give up after a while."""
    console.tell(event("refusal-told", limit_s=TELL_S))
    hurried = replace(settings, roll_call_timeout_s=min(TELL_S, settings.roll_call_timeout_s))
    training = TrainingCommand(Command((), environment), Path(os.devnull), "", 0.0, ExitFile(None))
    task = _task(fingerprint, hurried, training, 0)
    attempt = Attempt(training, lambda _place, _restarts: training, task, inbox, console, RunReporter())
    try:
        with suppress(LaunchError, Interrupted, JobMovedError):
            attempt.meet()
    finally:
        attempt.close()


def exit_code(outcome: Outcome, settled: RunOutcome, node_rank: int) -> int:
    """Return the code of a node: its training's, that of who failed first, or what its devices are worth."""
    finished = outcome.exit_code == 0 and outcome.stopped_by is None
    if finished or settled.exit_code == 0:
        return outcome.exit_code
    bad = [node.node_rank for node in settled.unwell if node.bad]
    if node_rank in bad:
        return UnfitNodeError.exit_code
    return NodesAbsentError.exit_code if bad else settled.exit_code


def _task(
    fingerprint: Fingerprint, settings: RendezvousSettings, training: TrainingCommand, restarts: int
) -> RunTask:
    return RunTask(
        node=replace(fingerprint, restarts_used=restarts),
        master_addr=settings.master_addr,
        master_port=settings.master_port,
        rendezvous_port=settings.port,
        roll_call_timeout_s=settings.roll_call_timeout_s,
        node_timeout_s=settings.node_timeout_s,
        grace_s=training.grace_s,
        log_path=str(training.log_path),
        secret=settings.secret.reveal() if settings.secret else "",
        spares=settings.spares,
        spare=fingerprint.node_rank >= fingerprint.nnodes,
        max_restarts=settings.max_restarts,
        places=settings.places,
    )
