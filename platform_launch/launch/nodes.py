"""Hand-off: this node's training alone, or together with those of the other nodes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import Signals

from platform_launch.console import Console
from platform_launch.environment import Environment
from platform_launch.errors import HangError, LaunchError, UnfitNodeError, of_file
from platform_launch.events import Event, event
from platform_launch.launch.exit_code import exit_file
from platform_launch.launch.notices import MetadataService, sources
from platform_launch.launch.options import NO_NOTICE, TogetherFlags
from platform_launch.launch.outcome import Result, was_failure
from platform_launch.launch.training_command import (
    RESTART,
    HangOptions,
    HealthOptions,
    NodePlace,
    TrainingCommand,
)
from platform_launch.launch.watched_training import LaunchContext, WatchedTraining
from platform_launch.observe import FOLDER_VARIABLE
from platform_launch.observe.memory import MemoryHeld
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.plan.request import Request
from platform_launch.supervise import DEFAULT_GRACE_S, Command, Outcome
from platform_launch.supervise.signals import SignalInbox
from platform_launch.topology import Topology, node_prefix

_GIB = 2**30


def train(
    plan_at: Callable[[NodePlace], LaunchPlan],
    topology: Topology,
    env: Environment,
    request: Request,
    flags: TogetherFlags,
    context: LaunchContext,
    memory: Callable[[], MemoryHeld],
) -> Result:
    """Run this node's plan to its end; ``plan_at`` gives the one for the place of a node.

    ``memory()`` is the most that the training held so far, for whoever asks while it runs.

    Raises LaunchError when the nodes cannot start together, Interrupted when a signal comes before they do,
    and SpareNotNeededError.
    """
    notice_signal = Signals[flags.notice_signal] if flags.notice_signal != NO_NOTICE else None
    with exit_file() as reported:

        def training_at(place: NodePlace) -> TrainingCommand:
            plan = plan_at(place)
            return TrainingCommand(
                reported.passed_to(Command(plan.argv, plan.child_environment(env.inherited()))),
                plan.log_path,
                node_prefix(place.node_rank) if topology.nnodes > 1 else "",
                DEFAULT_GRACE_S if request.grace_s is None else request.grace_s,
                reported,
                _hang_options(plan, env, flags, memory),
                health_options(plan, env, flags.health_interval_s),
                int(request.log_limit_gib * _GIB),
                is_agent=plan.launcher in ("torchrun", "accelerate"),
                nnodes=topology.nnodes,
                notices=tuple(sources(env, MetadataService())) if notice_signal is not None else (),
                notice_signal=notice_signal,
            )

        own = NodePlace(topology.node_rank, topology.master_addr)
        if topology.nnodes > 1 and not flags.no_roll_call:
            from platform_launch.launch import together

            fingerprint = together.fingerprint(plan_at(own), training_at(own).command)
            settings = together.rendezvous_settings(topology, env, flags)
            return together.run_together(training_at, fingerprint, settings, context)
        if topology.nnodes > 1:
            context.console.tell(event("roll-call-skipped"))
        return _train_alone(training_at(own), own, flags, context)


def _train_alone(
    training: TrainingCommand,
    place: NodePlace,
    flags: TogetherFlags,
    context: LaunchContext,
) -> Result:
    """Run the job's processes of a node that meets no others, again after a failure if that was asked for."""
    restarts = 0
    failures: list[Outcome] = []
    while True:
        watched = WatchedTraining(training.started_again(restarts), context)
        try:
            outcome = watched.run()
            hung = watched.hang is not None
            worth = watched.ask_devices() if hung or was_failure(outcome) else None
        finally:
            watched.close()
        bad = worth is not None and worth.bad
        if not hung and not was_failure(outcome):
            break
        failures.append(outcome)
        if not _starts_again(failures, flags, context.console, hung=hung, bad=bad):
            break
        restarts += 1
        context.console.tell(event("node-restarts", restart=restarts, max_restarts=flags.max_restarts))
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
        restarts=restarts,
        first_failed=place.node_rank if failed else None,
        cost=context.reporter.clock.so_far(),
        health=worth,
        saves=watched.saves.known,
    )


def _starts_again(
    failures: Sequence[Outcome], flags: TogetherFlags, console: Console, *, hung: bool, bad: bool
) -> bool:
    """Tell whether a node that meets no others starts again, as several would; report why it does not."""
    if not flags.max_restarts:
        return False
    # Here: no other launch of one node needs them.
    from platform_launch.observe.steps import highest_step
    from platform_launch.rendezvous.restarts import (
        FailedRun,
        NotAgain,
        NotAgainKind,
        describe_not_again,
        is_young,
        why_not_again,
    )
    from platform_launch.why import LogSource, explain

    runs = [FailedRun(highest_step(one.tail.decode(errors="replace")), one.duration_s) for one in failures]
    not_again = why_not_again(runs, len(failures) - 1, flags.max_restarts)
    if bad:
        not_again = NotAgain(NotAgainKind.BAD_NODE)
    elif hung and flags.on_hang != RESTART:
        not_again = NotAgain(NotAgainKind.HANG)
    elif not_again is None and not hung and is_young(runs[-1]):
        found = explain([LogSource("the end of the output", io.BytesIO(failures[-1].tail))])
        not_again = NotAgain(NotAgainKind.JOB) if found.retry == "no" else None
    if not_again is not None:
        values = {"kind": not_again.kind.value, "max_restarts": flags.max_restarts}
        console.tell(event("not-restarted", reason=describe_not_again(not_again), **values))
    return not_again is None


def _hang_options(
    plan: LaunchPlan, env: Environment, flags: TogetherFlags, memory: Callable[[], MemoryHeld]
) -> HangOptions | None:
    """Return what the hang monitor needs; None where the training's processes were not to be touched."""
    folder = next((variable.value for variable in plan.env if variable.name == FOLDER_VARIABLE), None)
    if folder is None:
        return None
    topology = plan.topology
    return HangOptions(
        Path(folder),
        topology.node_rank,
        topology.world_size or 1,
        env.hostname,
        plan.log_path,
        flags.on_hang,
        flags.hang_after_s,
        {index: f"GPU {gpu.index}" for index, gpu in enumerate(plan.hardware.gpus.devices)},
        memory,
    )


def health_options(plan: LaunchPlan, env: Environment, interval_s: float) -> HealthOptions:
    """Return the devices that the training uses: its GPUs, and the ports that carry its traffic."""
    machine = plan.hardware
    return HealthOptions(
        interval_s,
        plan.topology.node_rank,
        env.hostname,
        () if machine.assumed else machine.gpus.monitored,
        tuple(plan.ports_in_use(env.inherited())),
    )


@contextmanager
def telling_the_others(
    topology: Topology, env: Environment, flags: TogetherFlags, console: Console, inbox: SignalInbox
) -> Iterator[None]:
    """Let the other nodes know why this one does not start: they would wait for it, and not know why.

    Whatever it was: also of what nobody expected here they hear at once.
    """
    meets = topology.nnodes > 1 and not flags.no_roll_call
    if meets:
        from platform_launch.launch import together  # now: a disk that is lost later keeps nobody waiting
    try:
        yield
    except Exception as error:
        known = of_file(error) if isinstance(error, OSError) else None
        unforeseen = LaunchError(f"{type(error).__name__}: {error}")
        refusal = error if isinstance(error, LaunchError) else known or unforeseen
        # A spare that cannot start is one spare less, and no reason for the others to end.
        if meets and not topology.is_spare:
            fields = {"what": refusal.message, "message": refusal.message}
            console.tell(Event(refusal.event, "ERROR", fields=fields))
            # What this node lacks, its telling may lack as well; no other reason may hide the one it has.
            with suppress(OSError, RuntimeError, LaunchError):
                together.refuse(refusal, topology, env, flags, console, inbox)
        if known is not None:
            raise known from error
        raise
