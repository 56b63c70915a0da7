"""The run of a single node: train, check the devices after a failure, and perhaps restart."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from platform_launch.console import Console
from platform_launch.errors import HangError, UnfitNodeError
from platform_launch.events import event
from platform_launch.launch.conclusion import Result, was_failure
from platform_launch.launch.training_command import RESTART, NodePlace, TrainingCommand
from platform_launch.launch.watched_training import LaunchContext, WatchedTraining
from platform_launch.plan.request import RunOptions
from platform_launch.supervise import Outcome

if TYPE_CHECKING:
    from platform_launch.observe.checkpoints import Checkpoint


def run_alone(
    training: TrainingCommand,
    place: NodePlace,
    options: RunOptions,
    context: LaunchContext,
) -> Result:
    """Run the processes of a single-node job, again after a failure if that was requested.

    Main thread only. Raises Interrupted for a signal before they start.
    """
    restarts = 0
    failures: list[tuple[Outcome, Checkpoint | None]] = []
    while True:
        watched = WatchedTraining(training.for_restart(restarts), context)
        try:
            outcome = watched.run()
            hung = watched.hang is not None
            worth = watched.check_devices() if hung or was_failure(outcome) else None
        finally:
            watched.close()
        bad = worth is not None and worth.bad
        if not hung and not was_failure(outcome):
            break
        failures.append((outcome, watched.saves.newest_written() if options.max_restarts else None))
        if not _may_restart(failures, options, context.console, hung=hung, bad=bad):
            break
        restarts += 1
        context.console.report(event("node-restarts", restart=restarts, max_restarts=options.max_restarts))
    failed = outcome.exit_code != 0 and (outcome.stopped_by is None or hung)
    code = UnfitNodeError.exit_code if bad else HangError.exit_code if hung else outcome.exit_code
    run = None
    if worth is not None:
        from platform_launch.rendezvous.ending import RunOutcome, UnwellNode

        unwell = (UnwellNode(place.node_rank, training.health.host, worth),) if worth.reasons else ()
        run = RunOutcome(code, well=int(not unwell), unwell=unwell)
    return Result(
        code,
        outcome,
        place,
        run,
        first_failed=place.node_rank if failed else None,
        health=worth,
        saves=watched.saves.known,
    )


def _may_restart(
    failures: Sequence[tuple[Outcome, Checkpoint | None]],
    options: RunOptions,
    console: Console,
    *,
    hung: bool,
    bad: bool,
) -> bool:
    """Return whether a single node restarts, by the rules for several; report why it does not."""
    if not options.max_restarts:
        return False
    # imported here, because other single-node launches do not need it
    from platform_launch.observe.steps import highest_step
    from platform_launch.rendezvous.restarts import (
        FailedRun,
        NotAgain,
        NotAgainKind,
        describe_not_again,
        is_young,
        why_not_again,
    )
    from platform_launch.why.explaining import explain
    from platform_launch.why.sources import LogSource

    runs = [
        FailedRun(highest_step(one.tail.decode(errors="replace")), one.duration_s, checkpoint)
        for one, checkpoint in failures
    ]
    not_again = why_not_again(runs, len(failures) - 1, options.max_restarts)
    if bad:
        not_again = NotAgain(NotAgainKind.BAD_NODE)
    elif hung and options.on_hang != RESTART:
        not_again = NotAgain(NotAgainKind.HANG)
    elif not_again is None and not hung and is_young(runs[-1]):
        found = explain([LogSource("the end of the output", io.BytesIO(failures[-1][0].tail))])
        not_again = NotAgain(NotAgainKind.JOB) if found.retry == "no" else None
    if not_again is not None:
        values = {"kind": not_again.kind.value, "max_restarts": options.max_restarts}
        console.report(event("not-restarted", reason=describe_not_again(not_again), **values))
    return not_again is None
