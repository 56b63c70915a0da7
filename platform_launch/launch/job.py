"""The life of one node of a job, from its variables to its exit code.

    detect       platforms, ranks_from             which node of which job this is
    plan         hardware, fitness, plan           what the machine has, what will run; stages announces it
    rendezvous   together, attempt                 all nodes meet and compare what they have in common
    train        watched_training                  the processes run, supervised and monitored
    agree        attempt, outcome.node_ending      what the end means for all nodes; perhaps another attempt
    finish       outcome.conclusion                the root cause, the record, the last lines, the exit code

A node that meets no others (``alone``) skips the rendezvous and agrees with nobody.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platform_launch import files, hardware
from platform_launch.console import Console
from platform_launch.environment import Environment
from platform_launch.errors import LaunchError, of_file
from platform_launch.events import Event, event
from platform_launch.hardware import Hardware, cgroup
from platform_launch.launch.alone import run_alone
from platform_launch.launch.fitness import (
    expect_limits,
    quarantine_file,
    quarantine_if_bad,
    refuse_if_quarantined,
)
from platform_launch.launch.options import TogetherFlags
from platform_launch.launch.outcome.conclusion import conclude, verdict_on
from platform_launch.launch.outcome.exit_code import exit_file
from platform_launch.launch.outcome.result import Result, SpareNotNeededError, report_outcome
from platform_launch.launch.process_watch import BindingWatch, MemoryPeak
from platform_launch.launch.stages import announce
from platform_launch.launch.statistics.publishing import publishers, publishing
from platform_launch.launch.training_command import NodePlace, TrainingCommand, training_command
from platform_launch.launch.watched_training import LaunchContext
from platform_launch.plan.launch_plan import LaunchPlan, build_plan
from platform_launch.plan.request import Request
from platform_launch.platforms import detect
from platform_launch.supervise.processes import (
    expect_null_device,
    fill_closed_descriptors,
    stays_blocked,
)
from platform_launch.supervise.signals import Interrupted, SignalInbox
from platform_launch.text import Phrase, counted
from platform_launch.topology import Topology, node_prefix

if TYPE_CHECKING:
    from platform_launch.doctor import Finding

# As --verbose, for whoever cannot change the command.
VERBOSE = "PLATFORM_LAUNCH_VERBOSE"


def run_node(
    env: Environment, request: Request, together: TogetherFlags, ranks_from: Path | None, *, examine: bool
) -> int:
    """Detect which node this is, by variables or a folder of ranks, and launch; return the exit code."""
    fill_closed_descriptors()
    inbox = SignalInbox().open()
    try:
        with ExitStack() as stack:
            with inbox.raising():
                if ranks_from is not None:
                    from platform_launch.launch.ranks_from import holding_rank

                    rank = holding_rank(ranks_from, request, env, together.roll_call_timeout_s)
                    request = dataclasses.replace(request, overrides=stack.enter_context(rank))
                # The variables first: what they say wrong must not wait for a driver.
                topology = detect(env, request.overrides)
            return launch(topology, env, request, together, inbox, examine=examine)
    except Interrupted as interrupted:
        Console().report(event("launch-left", signal=interrupted.number.name))
        return 128 + interrupted.number
    except LaunchError:
        inbox.close()
        raise


def launch(
    topology: Topology,
    env: Environment,
    request: Request,
    together: TogetherFlags,
    inbox: SignalInbox,
    *,
    examine: bool,
) -> int:
    """Plan, run and finish this node's part of the job; return its exit code.

    Main thread only. Raises the LaunchError for which a launch is refused, which is in its log by then.
    ``inbox`` keeps what arrives from here on: a request to stop counts until the processes have ended, and
    then only hurries the conclusion. A scheduler that sees one node fail sends SIGTERM to the others at once
    (srun --kill-on-bad-exit), and would replace this node's exit code and reason by 143 and silence.
    """
    started = datetime.now(timezone.utc)
    prefix = node_prefix(topology.node_rank) if topology.nnodes > 1 else ""
    console = Console(prefix, node_rank=topology.node_rank)
    watched = (
        console.is_terminal and topology.node_rank == 0
    )  # a terminal that several nodes share hears it once
    console.verbose = together.verbose or VERBOSE in env
    console.quiet = not (console.verbose or watched)
    quarantine = quarantine_file(env, together.quarantine)
    try:
        with inbox.raising(), _reporting_refusals(topology, env, together, console, inbox):
            plan = _plan(topology, env, request, quarantine, console, examine=examine)
            context = LaunchContext(console, inbox)  # its clock starts now: the nodes begin to meet
            chosen = publishers(env, together, console, context.reporter, leads=topology.node_rank == 0)
        gpus = plan.hardware.gpus
        oom_kills = cgroup.OomKills()
        plan_at = _plans(plan, env, request)
        bound = BindingWatch(plan.binding.ranks, report=console.report, record=console.record)
        memory = MemoryPeak(() if plan.hardware.assumed else gpus.monitored)
        with publishing(chosen), bound, memory:
            result = _run(plan_at, topology, env, request, together, context, memory)
        plan = plan_at(result.place)
        remembered = quarantine_if_bad(quarantine, env, gpus.devices, result.health, plan.job_name)
        if remembered is not None:
            console.report(remembered)
        verdict = verdict_on(result, plan, oom_kills.so_far(), inbox)
        conclude(plan, result, verdict, memory, console, started)
    except LaunchError as error:
        error.marked = True
        console.log_error(error)
        raise
    except Interrupted as interrupted:
        console.report(event("launch-left", signal=interrupted.number.name))
        return 128 + interrupted.number
    except SpareNotNeededError as spare:
        report_outcome(spare.outcome, console)
        console.report(event("spare-not-needed"))
        return spare.outcome.exit_code
    finally:
        console.close()
        if stays_blocked():
            Console(prefix).report(event("exit-blocked"))
    return result.exit_code


def _plan(
    topology: Topology,
    env: Environment,
    request: Request,
    quarantine: Path | None,
    console: Console,
    *,
    examine: bool,
) -> LaunchPlan:
    """Decide what will run on this machine, open its log, and announce it. Raises LaunchError."""
    expect_null_device()
    expect_limits()
    machine = hardware.detect(env, master_addr=topology.master_addr)
    refuse_if_quarantined(quarantine, env, machine.gpus.devices, console.report)
    plan = _with_log(build_plan(env, machine, request, topology), console)
    for nodes in {topology.least, topology.nnodes - 1} - {0, topology.nnodes}:
        _refuse_if_impossible(nodes, env, machine, request)
    _make_private_folders(plan, request)
    announce(plan, console, _findings(plan, env) if examine else [])
    return plan


def _refuse_if_impossible(nodes: int, env: Environment, machine: Hardware, request: Request) -> None:
    """Refuse ``--min-nodes`` now if the job could not continue with so many nodes. Raises LaunchError."""
    try:
        build_plan(env, machine, _at(request, stands_in_for=0, remaining=nodes))
    except LaunchError as error:
        error.message = Phrase(
            "--min-nodes: the job could not continue with {nodes}: {problem}",
            nodes=counted(nodes, "node"),
            problem=error.message,
        )
        raise


def _at(request: Request, **decided: Any) -> Request:
    """Return the request with what node 0 has decided."""
    return dataclasses.replace(request, overrides=dataclasses.replace(request.overrides, **decided))


def _run(
    plan_at: Callable[[NodePlace], LaunchPlan],
    topology: Topology,
    env: Environment,
    request: Request,
    flags: TogetherFlags,
    context: LaunchContext,
    memory: MemoryPeak,
) -> Result:
    """Rendezvous, train and agree, until there is no other attempt; ``plan_at`` plans for a node's place.

    Raises LaunchError when the nodes cannot start together, Interrupted when a signal comes before they do,
    and SpareNotNeededError.
    """
    with exit_file() as reported:

        def training_at(place: NodePlace) -> TrainingCommand:
            return training_command(plan_at(place), env, request, flags, reported, lambda: memory.held)

        own = _place(topology)
        if topology.nnodes > 1 and not flags.no_roll_call:
            from platform_launch.launch import together

            fingerprint = together.fingerprint(plan_at(own), training_at(own).command)
            settings = together.rendezvous_settings(topology, env, flags)
            return together.run_together(training_at, fingerprint, settings, context)
        if topology.nnodes > 1:
            context.console.report(event("roll-call-skipped"))
        return run_alone(training_at(own), own, flags, context)


@contextmanager
def _reporting_refusals(
    topology: Topology, env: Environment, flags: TogetherFlags, console: Console, inbox: SignalInbox
) -> Iterator[None]:
    """Report to the other nodes at once why this one does not start, whatever it was: they wait for it."""
    meets = topology.nnodes > 1 and not flags.no_roll_call
    if meets:
        from platform_launch.launch import together  # now: a disk that is lost later keeps nobody waiting
    try:
        yield
    except Exception as error:
        known = of_file(error) if isinstance(error, OSError) else None
        described = f"{type(error).__name__}: {error}"  # of an error that nobody foresaw
        refusal = error if isinstance(error, LaunchError) else known or LaunchError(described)
        # A spare that cannot start is one spare fewer, and no reason for the others to stop.
        if meets and not topology.is_spare:
            fields = {"what": refusal.message, "message": refusal.message}
            console.report(Event(refusal.event, "ERROR", fields=fields))
            # What this node lacks, its report may lack as well; nothing may hide the reason.
            with suppress(OSError, RuntimeError, LaunchError):
                together.refuse(refusal, topology, env, flags, console, inbox)
        if known is not None:
            raise known from error
        raise


def _plans(own: LaunchPlan, env: Environment, request: Request) -> Callable[[NodePlace], LaunchPlan]:
    """Return a function that gives this node's plan in any place; its log and its hardware stay the same."""
    came_to = _place(own.topology)

    @cache
    def plan_at(place: NodePlace) -> LaunchPlan:
        if place == came_to:
            return own
        decided = _at(
            request,
            stands_in_for=place.node_rank if place.node_rank != came_to.node_rank else None,
            moved_to=place.master_addr if place.master_addr != came_to.master_addr else None,
            remaining=place.nnodes if place.nnodes != came_to.nnodes else None,
        )
        plan = build_plan(env, own.hardware, decided)
        return dataclasses.replace(plan, log_path=own.log_path)

    return plan_at


def _place(topology: Topology) -> NodePlace:
    return NodePlace(topology.node_rank, topology.master_addr, topology.nnodes)


def _with_log(plan: LaunchPlan, console: Console) -> LaunchPlan:
    """Begin the log, and return the plan with the name it got: two launchers never write one file."""
    log = console.open_log(plan.log_path)
    if log is None:
        return plan
    console.report(event("log-opened", path=str(log)))
    return dataclasses.replace(plan, log_path=log)


def _make_private_folders(plan: LaunchPlan, request: Request) -> None:
    """Make the folder for compiled code now, private: the processes load what is in it."""
    chosen = {variable.name: Path(variable.value) for variable in plan.env}
    extensions, temporary = chosen.get("TORCH_EXTENSIONS_DIR"), Path(request.temporary)
    if extensions is not None and extensions.is_relative_to(temporary):
        hint = "remove it, or set TMPDIR or TORCH_EXTENSIONS_DIR to another folder"
        files.private_folder(temporary, "compiled code will be loaded from there", hint)


def _findings(plan: LaunchPlan, env: Environment) -> list[Finding]:
    from platform_launch.doctor import examine
    from platform_launch.doctor.gather import gather

    return examine(gather(env, plan))
