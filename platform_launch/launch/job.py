"""The life of one node of a job, from its variables to its exit code.

    detect       platforms                         which node of which job this is
    plan         hardware, plan, stages            what the machine has, what will run
    rendezvous   together, attempt                 all nodes meet and compare what they have in common
    train        watched_training                  the processes run, supervised and monitored
    agree        attempt, node_ending              what the end means for all nodes; perhaps another attempt
    finish       conclusion                        the root cause, the record, the last lines, the exit code

A single node (``alone``) skips the rendezvous.
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
from platform_launch.health.quarantine import quarantine_file, quarantine_if_bad, refuse_if_quarantined
from platform_launch.launch.alone import run_alone
from platform_launch.launch.conclusion import (
    Result,
    SpareNotNeededError,
    conclude,
    report_outcome,
    verdict_on,
)
from platform_launch.launch.exit_code import exit_file
from platform_launch.launch.stages import announce
from platform_launch.launch.training_command import NodePlace, TrainingCommand, training_command
from platform_launch.launch.watched_training import LaunchContext
from platform_launch.plan.launch_plan import LaunchPlan, build_plan
from platform_launch.plan.request import Request, RunOptions
from platform_launch.platforms import detect
from platform_launch.platforms.kubeflow import TRAINJOB_SERVER
from platform_launch.supervise.processes import (
    expect_limits,
    expect_null_device,
    fill_closed_descriptors,
    stays_blocked,
)
from platform_launch.supervise.signals import Interrupted, SignalInbox
from platform_launch.text import Phrase, counted
from platform_launch.topology import Topology, node_prefix

if TYPE_CHECKING:
    from platform_launch.doctor import Finding
    from platform_launch.launch.metrics import MetricsServer
    from platform_launch.launch.run_report import TrainJobStatus

# Like --verbose, for users who cannot change the command.
VERBOSE = "PLATFORM_LAUNCH_VERBOSE"


def run_node(
    env: Environment, request: Request, options: RunOptions, ranks_from: Path | None, *, examine: bool
) -> int:
    """Run this node's part of the job and return its exit code. Main thread only.

    Variables or, if given, a folder of ranks show which node this is. Raises the LaunchError for which a
    launch is refused, which is in its log by then.
    """
    fill_closed_descriptors()
    inbox = SignalInbox().open()
    try:
        with ExitStack() as stack:
            with inbox.raising():
                if ranks_from is not None:
                    from platform_launch.rendezvous.ranks_from import holding_rank

                    rank = holding_rank(ranks_from, request, env, options.roll_call_timeout_s)
                    request = dataclasses.replace(request, overrides=stack.enter_context(rank))
                # The variables first: an error in them must not wait for a driver.
                topology = detect(env, request.overrides)
            return _Launch(topology, env, request, options, inbox).run(examine=examine)
    except Interrupted as interrupted:
        Console().report(event("launch-left", signal=interrupted.number.name))
        return 128 + interrupted.number
    except LaunchError:
        inbox.close()
        raise


class _Launch:
    """The launch of a node whose topology is known.

    ``inbox`` keeps the signals: a request to stop counts until the processes have ended, and then only
    hurries the conclusion. A scheduler that sees one node fail sends SIGTERM to the others at once
    (srun --kill-on-bad-exit), and would replace this node's exit code and reason by 143 and silence.
    """

    def __init__(
        self, topology: Topology, env: Environment, request: Request, options: RunOptions, inbox: SignalInbox
    ) -> None:
        self._topology = topology
        self._env = env
        self._request = request
        self._options = options
        self._inbox = inbox
        self._uses_rendezvous = topology.nnodes > 1 and not options.no_roll_call
        self._prefix = node_prefix(topology.node_rank) if topology.nnodes > 1 else ""
        self._console = console = Console(self._prefix, node_rank=topology.node_rank)
        console.verbose = options.verbose or VERBOSE in env
        # On a terminal that several nodes share, one of them prints everything.
        console.quiet = not console.verbose and not (console.is_terminal and topology.node_rank == 0)
        self._quarantine = quarantine_file(env, options.quarantine)

    def run(self, *, examine: bool) -> int:
        """Plan, run and finish; return the exit code. Raises LaunchError for a refused launch."""
        started, console = datetime.now(timezone.utc), self._console
        try:
            with self._inbox.raising(), self._reporting_refusals():
                own = self._plan(examine=examine)
                context = LaunchContext(console, self._inbox)  # its clock starts now, with the rendezvous
                publishers = self._publishers(context)
            oom_kills, plan_at = cgroup.OomKills(), self._plans(own)
            with ExitStack() as watching:
                for publisher in publishers:
                    publisher.start()
                    watching.callback(publisher.stop)
                if own.binding.ranks:
                    from platform_launch.launch.process_watch import BindingWatch

                    bound = BindingWatch(own.binding.ranks, report=console.report, record=console.record)
                    watching.enter_context(bound)
                watching.callback(context.end)
                result = self._run(plan_at, context)
            plan = plan_at(result.place)
            gpus = own.hardware.gpus.devices
            remembered = quarantine_if_bad(self._quarantine, self._env, gpus, result.health, plan.job_name)
            if remembered is not None:
                console.report(remembered)
            verdict = verdict_on(result, plan, oom_kills.so_far(), self._inbox)
            conclude(plan, result, verdict, context.reporter.clock.so_far(), context.held(), console, started)
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
                Console(self._prefix).report(event("exit-blocked"))
        return result.exit_code

    def _plan(self, *, examine: bool) -> LaunchPlan:
        """Decide what will run on this machine, open its log, and announce it. Raises LaunchError."""
        topology, env, request, console = self._topology, self._env, self._request, self._console
        expect_null_device()
        expect_limits()
        machine = hardware.detect(env, master_addr=topology.master_addr)
        refuse_if_quarantined(self._quarantine, env, machine.gpus.devices, console.report)
        plan = build_plan(env, machine, request, topology)
        log = console.open_log(plan.log_path)
        if log is not None:  # two launchers never write one file
            console.report(event("log-opened", path=str(log)))
            plan = dataclasses.replace(plan, log_path=log)
        for nodes in {topology.least, topology.nnodes - 1} - {0, topology.nnodes}:
            _refuse_if_impossible(nodes, env, machine, request)
        _make_private_folders(plan, request)
        announce(plan, console, _findings(plan, env) if examine else [])
        return plan

    def _plans(self, own: LaunchPlan) -> Callable[[NodePlace], LaunchPlan]:
        """Return a function that makes this node's plan for any rank; its log and its hardware stay the
        same.
        """
        own_place = _place(self._topology)

        @cache
        def plan_at(place: NodePlace) -> LaunchPlan:
            if place == own_place:
                return own
            decided = _decided(
                self._request,
                stands_in_for=place.node_rank if place.node_rank != own_place.node_rank else None,
                moved_to=place.master_addr if place.master_addr != own_place.master_addr else None,
                remaining=place.nnodes if place.nnodes != own_place.nnodes else None,
            )
            plan = build_plan(self._env, own.hardware, decided)
            return dataclasses.replace(plan, log_path=own.log_path)

        return plan_at

    def _publishers(self, context: LaunchContext) -> list[MetricsServer | TrainJobStatus]:
        """Return what publishes the state of the run. Raises InstallationError."""
        if self._options.metrics is None and TRAINJOB_SERVER not in self._env:
            return []
        from platform_launch.launch.run_report import publishers

        leads = self._topology.node_rank == 0
        return publishers(self._env, self._options, self._console, context.reporter, leads=leads)

    def _run(self, plan_at: Callable[[NodePlace], LaunchPlan], context: LaunchContext) -> Result:
        """Rendezvous, train and agree, until there is no other attempt.

        Raises LaunchError when the nodes cannot start together, Interrupted when a signal comes before they
        do, and SpareNotNeededError.
        """
        topology, env, options = self._topology, self._env, self._options
        with exit_file() as reported:

            def training_at(place: NodePlace) -> TrainingCommand:
                plan = plan_at(place)
                return training_command(plan, env, self._request, options, reported, context.held)

            place = _place(topology)
            if self._uses_rendezvous:
                from platform_launch.launch import together

                training = training_at(place)
                node = together.fingerprint(plan_at(place), training.command)
                task = together.run_task(node, topology, env, options, training.grace_s)
                return together.run_together(training_at, task, context)
            if topology.nnodes > 1:
                self._console.report(event("roll-call-skipped"))
            return run_alone(training_at(place), place, options, context)

    @contextmanager
    def _reporting_refusals(self) -> Iterator[None]:
        """Report to the other nodes why this one does not start, whatever it was: they wait for it."""
        if self._uses_rendezvous:
            from platform_launch.launch import together  # now: the disk may be lost later
        try:
            yield
        except Exception as error:
            known = of_file(error) if isinstance(error, OSError) else None
            described = f"{type(error).__name__}: {error}"  # of an unexpected error
            refusal = error if isinstance(error, LaunchError) else known or LaunchError(described)
            # A spare that cannot start is no reason for the others to stop.
            if self._uses_rendezvous and not self._topology.is_spare:
                fields = {"what": refusal.message, "message": refusal.message}
                self._console.report(Event(refusal.event, "ERROR", fields=fields))
                # The report may fail for the same reason as the start; this must not hide the reason.
                with suppress(OSError, RuntimeError, LaunchError):
                    together.refuse(
                        refusal, self._topology, self._env, self._options, self._console, self._inbox
                    )
            if known is not None:
                raise known from error
            raise


def _place(topology: Topology) -> NodePlace:
    return NodePlace(topology.node_rank, topology.master_addr, topology.nnodes)


def _decided(request: Request, **decided: Any) -> Request:
    """Return the request with what node 0 has decided."""
    return dataclasses.replace(request, overrides=dataclasses.replace(request.overrides, **decided))


def _refuse_if_impossible(nodes: int, env: Environment, machine: Hardware, request: Request) -> None:
    """Refuse ``--min-nodes`` now if the job could not continue with so many nodes. Raises LaunchError."""
    try:
        build_plan(env, machine, _decided(request, stands_in_for=0, remaining=nodes))
    except LaunchError as error:
        error.message = Phrase(
            "--min-nodes: the job could not continue with {nodes}: {problem}",
            nodes=counted(nodes, "node"),
            problem=error.message,
        )
        raise


def _make_private_folders(plan: LaunchPlan, request: Request) -> None:
    """Create the private folder for compiled code now, because the processes load code from it."""
    chosen = {variable.name: Path(variable.value) for variable in plan.env}
    extensions, temporary = chosen.get("TORCH_EXTENSIONS_DIR"), Path(request.temporary)
    if extensions is not None and extensions.is_relative_to(temporary):
        hint = "remove it, or set TMPDIR or TORCH_EXTENSIONS_DIR to another folder"
        files.private_folder(temporary, "compiled code will be loaded from there", hint)


def _findings(plan: LaunchPlan, env: Environment) -> list[Finding]:
    from platform_launch.doctor import examine
    from platform_launch.doctor.gather import gather

    return examine(gather(env, plan))
