"""One node's launch from its request to its exit code: decide, announce, train, and say how it ended."""

from __future__ import annotations

import dataclasses
import resource
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from platform_launch import files, hardware
from platform_launch.console import Console
from platform_launch.environment import Environment
from platform_launch.errors import InstallationError, LaunchError
from platform_launch.events import event
from platform_launch.hardware import cgroup
from platform_launch.launch.conclusion import conclude, verdict_on
from platform_launch.launch.nodes import telling_the_others, train
from platform_launch.launch.options import TogetherFlags
from platform_launch.launch.outcome import SpareNotNeededError, tell_outcome
from platform_launch.launch.process_watch import BindingWatch, MemoryPeak
from platform_launch.launch.run_report import publishers, publishing
from platform_launch.launch.stages import announce
from platform_launch.launch.training_command import NodePlace
from platform_launch.launch.unfit import quarantine_file, refuse_if_quarantined, remember
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
from platform_launch.text import Phrase
from platform_launch.topology import Topology, node_prefix

if TYPE_CHECKING:
    from platform_launch.doctor import Finding

# Set by `simulate` for nodes whose facts another one tells on the same terminal.
BRIEF = "PLATFORM_LAUNCH_BRIEF"
_FEWEST_FILES = 32
_FEWEST_THREADS = 16


def run_node(
    env: Environment, request: Request, together: TogetherFlags, ranks_from: Path | None, *, examine: bool
) -> int:
    """Be the node that the variables, or a folder of ranks, say; return the exit code. See :func:`launch`."""
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
        Console().tell(event("launch-left", signal=interrupted.number.name))
        return 128 + interrupted.number
    except LaunchError:
        inbox.close()
        raise


def _expect_descriptors() -> None:
    """Refuse where too few files may be open for a launch. Raises InstallationError."""
    may_be_open, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= may_be_open < _FEWEST_FILES:
        raise InstallationError(
            Phrase(
                "{may_be_open} files may be open at a time (ulimit -n): expected {fewest} at least, and "
                "a training needs thousands",
                may_be_open=may_be_open,
                fewest=_FEWEST_FILES,
            ),
            "raise the limit of this container or shell, e.g. ulimit -n 65536",
        )


def _expect_threads() -> None:
    """Refuse where too few threads and processes can be started for a launch. Raises InstallationError."""
    tried = Event()
    threads = [Thread(target=tried.wait, daemon=True) for _ in range(_FEWEST_THREADS)]
    started = 0
    try:
        for thread in threads:
            thread.start()
            started += 1
    except RuntimeError as error:  # all that Python says, whatever the limit was
        raise InstallationError(
            Phrase(
                "only {started} more threads and processes can be started here: expected {fewest} at "
                "least, and a training needs hundreds",
                started=started,
                fewest=_FEWEST_THREADS,
            ),
            "raise the limit of this container (pids), of this user (ulimit -u), or of the memory that a "
            "process may address (ulimit -v)",
        ) from error
    finally:
        tried.set()


def launch(
    topology: Topology,
    env: Environment,
    request: Request,
    together: TogetherFlags,
    inbox: SignalInbox,
    *,
    examine: bool,
) -> int:
    """Lead this node's part of the job from first to last; return the training's exit code.

    Main thread only. Raises the LaunchError for which a launch is refused, which is in its log by then.
    ``inbox`` keeps what arrives from here on: a request to end is heeded until the training is over, and
    then only hurries the last words. A scheduler that sees one node fail sends SIGTERM to the others at once
    (srun --kill-on-bad-exit), and would replace this node's exit code and reason by 143 and silence.
    """
    started = datetime.now(timezone.utc)
    prefix = node_prefix(topology.node_rank) if topology.nnodes > 1 else ""
    console = Console(prefix, node_rank=topology.node_rank)
    try:
        with inbox.raising(), telling_the_others(topology, env, together, console, inbox):
            expect_null_device()
            _expect_descriptors()
            _expect_threads()
            machine = hardware.detect(env, master_addr=topology.master_addr)
            quarantine = quarantine_file(env, together.quarantine)
            refuse_if_quarantined(quarantine, env, machine.gpus.devices, console.tell)
            plan = build_plan(env, machine, request)
            plan = _with_log(plan, console)
            _make_private_folders(plan, request)
            with console.only_noting_facts() if BRIEF in env else nullcontext():
                announce(plan, console, _findings(plan, env) if examine else [])
            context = LaunchContext(console, inbox)
            chosen = publishers(env, together, console, context.reporter, leads=topology.node_rank == 0)
        oom_kills = cgroup.OomKills()
        plan_at = _plans(plan, env, request)
        gpus = () if plan.hardware.assumed else plan.hardware.gpus.monitored
        bound = BindingWatch(plan.binding.ranks, tell=console.tell, note=console.note)
        with publishing(chosen), bound, MemoryPeak(gpus) as memory:
            result = train(
                plan_at,
                topology,
                env,
                request,
                together,
                context,
                lambda: memory.held,
            )
        plan = plan_at(result.place)
        remembered = remember(quarantine, env, machine.gpus.devices, result.health, plan.job_name)
        if remembered is not None:
            console.tell(remembered)
        verdict = verdict_on(result, plan, oom_kills.so_far(), inbox)
        conclude(plan, result, verdict, memory, console, started)
    except LaunchError as error:
        error.marked = True
        console.refused(error)
        raise
    except Interrupted as interrupted:
        console.tell(event("launch-left", signal=interrupted.number.name))
        return 128 + interrupted.number
    except SpareNotNeededError as spare:
        tell_outcome(spare.outcome, console)
        console.tell(event("spare-not-needed"))
        return spare.outcome.exit_code
    finally:
        console.close()
        if stays_blocked():
            Console(prefix).tell(event("exit-blocked"))
    return result.exit_code


def _plans(own: LaunchPlan, env: Environment, request: Request) -> Callable[[NodePlace], LaunchPlan]:
    """Return what gives this node's plan in its own place, in those where it may stand in, and elsewhere.

    The log and what was found on this machine stay the same.
    """
    came_to = NodePlace(own.topology.node_rank, own.topology.master_addr)

    @cache
    def plan_at(place: NodePlace) -> LaunchPlan:
        if place == came_to:
            return own
        overrides = dataclasses.replace(
            request.overrides,
            stands_in_for=place.node_rank if place.node_rank != came_to.node_rank else None,
            moved_to=place.master_addr if place.master_addr != came_to.master_addr else None,
        )
        plan = build_plan(env, own.hardware, dataclasses.replace(request, overrides=overrides))
        return dataclasses.replace(plan, log_path=own.log_path)

    return plan_at


def _with_log(plan: LaunchPlan, console: Console) -> LaunchPlan:
    """Begin the log, and return the plan with the name it got: two launchers never write one file."""
    log = console.keep(plan.log_path)
    if log is None:
        return plan
    console.tell(event("log-opened", path=str(log)))
    return dataclasses.replace(plan, log_path=log)


def _make_private_folders(plan: LaunchPlan, request: Request) -> None:
    """Make the folder for compiled code now: what lies in it is loaded by the training."""
    chosen = {variable.name: Path(variable.value) for variable in plan.env}
    extensions, temporary = chosen.get("TORCH_EXTENSIONS_DIR"), Path(request.temporary)
    if extensions is not None and extensions.is_relative_to(temporary):
        hint = "remove it, or set TMPDIR or TORCH_EXTENSIONS_DIR to another folder"
        files.private_folder(temporary, "compiled code will be loaded from there", hint)


def _findings(plan: LaunchPlan, env: Environment) -> list[Finding]:
    from platform_launch.doctor import examine
    from platform_launch.doctor.gather import gather

    return examine(gather(env, plan))
