"""A node's run together with the other nodes of its job: join, train, agree, and perhaps restart.

A job of one node imports nothing of this.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from platform_launch.console import Console
from platform_launch.environment import Environment
from platform_launch.errors import LaunchError
from platform_launch.events import event
from platform_launch.hardware import packages, storage
from platform_launch.launch.attempt import REPORT_REFUSAL_S, Attempt, JobMovedError
from platform_launch.launch.options import BY_NETWORK, TogetherFlags
from platform_launch.launch.outcome.exit_code import ExitFile, job_exit_code
from platform_launch.launch.outcome.result import Result, report_outcome
from platform_launch.launch.stages import versions
from platform_launch.launch.training_command import STOP, NodePlace, TrainingCommand
from platform_launch.launch.watched_training import LaunchContext
from platform_launch.observe.steps import highest_step
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.project import git_revision
from platform_launch.rendezvous.authentication import Secret, read_secret
from platform_launch.rendezvous.ending import EndKind, RunOutcome
from platform_launch.rendezvous.fingerprint import Fingerprint, fingerprint_of
from platform_launch.rendezvous.listening import rendezvous_ports
from platform_launch.rendezvous.restarts import FailedRun, NotAgain, NotAgainKind, why_not_again
from platform_launch.rendezvous.run.places import Places
from platform_launch.rendezvous.run.task import Moved, RunTask
from platform_launch.supervise import Command, Outcome
from platform_launch.supervise.signals import Interrupted, SignalInbox
from platform_launch.topology import Topology

_NCCL_PACKAGES = ("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13")


@dataclass(frozen=True)
class RendezvousSettings:
    """Where the rendezvous is, and the user's settings for it. ``max_restarts`` of node 0 applies to all.

    ``ports`` are those of the rendezvous, in the order to try.
    """

    master_addr: str
    master_port: int
    ports: tuple[int, ...]
    roll_call_timeout_s: float = 600.0
    node_timeout_s: float = 60.0
    max_restarts: int = 0
    secret: Secret | None = None
    spares: int = 0
    min_nodes: int | None = None
    by_network: bool = False
    places: Places = field(default_factory=Places)


def run_together(
    training_at: Callable[[NodePlace], TrainingCommand],
    fingerprint: Fingerprint,
    settings: RendezvousSettings,
    context: LaunchContext,
) -> Result:
    """Run this node's part of a job together with the other nodes. Main thread only.

    ``training_at`` returns what this node runs with a given rank; a spare waits for one. Raises LaunchError
    if the nodes cannot start, the same on all of them, Interrupted if a signal stops this node before all
    have joined, and SpareNotNeededError. A node whose processes finished exits with 0 whatever happens
    elsewhere.
    """
    console = context.console
    job = _JobSoFar(training_at, fingerprint, settings, console)
    console.report(
        event(
            "roll-call-opened",
            nnodes=fingerprint.nnodes,
            master_addr=settings.master_addr,
            port=settings.ports[0],
            limit_s=settings.roll_call_timeout_s,
        )
    )
    while True:
        attempt = Attempt(job.training, job.started_again, job.task(), context)
        try:
            outcome = _trained(attempt)
            agreed = attempt.conclude(outcome, job.record(attempt, outcome))
        except JobMovedError as elsewhere:
            job.follow(elsewhere.moved)
            continue
        finally:
            attempt.close()
        rank = job.place.node_rank
        if agreed.restart and rank in agreed.bad:
            console.report(event("node-left-out"))
        if not agreed.restart or rank in agreed.bad:
            return Result(
                job_exit_code(outcome, agreed, rank),
                outcome,
                job.place,
                agreed,
                job.restarts,
                agreed.first_failed,
                context.reporter.clock.so_far(),
                attempt.health,
                attempt.saves,
                tuple(job.nodes),
            )
        job.restart(agreed)


class _JobSoFar:
    """What a node knows about its job over all attempts. ``place`` is the current one; ``nodes`` is how many
    nodes each attempt had that this one took part in.
    """

    def __init__(
        self,
        training_at: Callable[[NodePlace], TrainingCommand],
        fingerprint: Fingerprint,
        settings: RendezvousSettings,
        console: Console,
    ) -> None:
        self.settings = settings
        self.restarts = 0
        self.nodes: list[int] = []
        self.place = NodePlace(fingerprint.node_rank, settings.master_addr, fingerprint.nnodes)
        self.training = training_at(self.place)
        self._training_at = training_at
        self._fingerprint = fingerprint
        self._console = console
        self._is_spare = fingerprint.node_rank >= fingerprint.nnodes
        self._failed: list[FailedRun] = []
        self._port_given_up = False
        self._replaced: tuple[int, ...] = ()
        self._lost = False

    def task(self) -> RunTask:
        """Return what the rendezvous needs for the next attempt."""
        task = _task(self._fingerprint, self.settings, self.training, self.restarts)
        return replace(
            task,
            spare=self._is_spare,
            replaced=self._replaced,
            lost=self._lost,
            trained=self.place.nnodes,
        )

    def started_again(self, place: NodePlace, restarts: int) -> TrainingCommand:
        """Return what this node runs in a place after so many restarts."""
        return self._training_at(place).started_again(restarts)

    def follow(self, moved: Moved) -> None:
        """Join at the host that the rendezvous moved to."""
        self.settings = replace(self.settings, master_addr=moved.host)
        self.restarts = max(self.restarts, moved.restarts_used)
        # Another node has that rank there.
        self._is_spare = self._is_spare or self._fingerprint.node_rank == 0
        self._lost = True

    def record(self, attempt: Attempt, outcome: Outcome) -> NotAgain | None:
        """Record an attempt and its place; return why this node wants no restart, None if it does."""
        self._adopt_place(attempt)
        written = attempt.newest_checkpoint() if self.settings.max_restarts and outcome.exit_code else None
        step = highest_step(attempt.output.text())
        self._failed.append(FailedRun(step, outcome.duration_s, written))
        max_restarts = self.settings.max_restarts
        not_again = why_not_again(self._failed, self.restarts - self._port_given_up, max_restarts)
        if len(self.settings.ports) > 1 and not self._port_given_up and attempt.was_in_the_way(outcome):
            self._port_given_up, not_again = True, None
            self._failed.clear()
            used = attempt.rendezvous_port
            self._console.report(event("port-given-up", port=used))
            others = tuple(port for port in self.settings.ports if port != used)
            self.settings = replace(self.settings, ports=others)
        if attempt.hung and self.training.hangs and self.training.hangs.on_hang == STOP:
            return NotAgain(NotAgainKind.HANG)
        return not_again

    def restart(self, agreed: RunOutcome) -> None:
        """Report the restart and its reason."""
        self.restarts += 1
        self._replaced, self._lost = agreed.replaced, lost_node_0(agreed)
        report_outcome(agreed, self._console, in_full=self._lost or self.place.node_rank == 0)
        settings = self.settings
        if self._lost and settings.spares and settings.places.stays:
            stays, limit_s = settings.places.stays, settings.roll_call_timeout_s
            self._console.report(event("job-stays", reason=stays, limit_s=limit_s))
        most = max(self.restarts, settings.max_restarts)
        self._console.report(event("nodes-restart", restart=self.restarts, max_restarts=most))

    def _adopt_place(self, attempt: Attempt) -> None:
        """Keep the place that this node had in an attempt: a spare may have been assigned one."""
        self.restarts, self._is_spare = attempt.restarts, False
        self.nodes.append(attempt.place.nnodes)
        # The job may have moved away and back, which comparing places does not show.
        self.settings = replace(self.settings, master_addr=attempt.place.master_addr)
        if attempt.place != self.place:
            self.place, before = attempt.place, self._fingerprint
            stand_in = before.stand_in or self.place.node_rank != before.node_rank
            self._fingerprint = replace(before, node_rank=self.place.node_rank, stand_in=stand_in)
            self.training = self._training_at(self.place)


def lost_node_0(agreed: RunOutcome) -> bool:
    """Return whether a run ended without node 0, which may then miss the next attempt."""
    kind = agreed.ending.kind if agreed.ending is not None else None
    return 0 in agreed.replaced or kind in (EndKind.COORDINATOR_GONE, EndKind.COORDINATOR_SILENT)


def _trained(attempt: Attempt) -> Outcome:
    """Join the others and train; return how it ended here."""
    try:
        attempt.join()
        return attempt.train()
    except Interrupted as interrupted:
        outcome = attempt.not_begun(interrupted.number)
        if outcome is None:
            raise
        return outcome


def _task(
    fingerprint: Fingerprint, settings: RendezvousSettings, training: TrainingCommand, restarts: int
) -> RunTask:
    return RunTask(
        node=replace(fingerprint, restarts_used=restarts),
        master_addr=settings.master_addr,
        master_port=settings.master_port,
        ports=settings.ports,
        roll_call_timeout_s=settings.roll_call_timeout_s,
        node_timeout_s=settings.node_timeout_s,
        grace_s=training.grace_s,
        secret=settings.secret,
        spares=settings.spares,
        spare=fingerprint.node_rank >= fingerprint.nnodes,
        max_restarts=settings.max_restarts,
        min_nodes=settings.min_nodes,
        by_network=settings.by_network,
        places=settings.places,
    )


def refuse(
    refusal: LaunchError,
    topology: Topology,
    env: Environment,
    flags: TogetherFlags,
    console: Console,
    inbox: SignalInbox,
) -> None:
    """Report to the other nodes why this one does not start; give up after a while."""
    refusing = Fingerprint(
        topology.node_rank,
        topology.nnodes,
        env.hostname,
        (env.address,) if env.address != env.hostname else (),
        _identity(),
        topology.job_id,
        refusal=refusal.message,
        refusal_code=refusal.exit_code,
    )
    settings = rendezvous_settings(topology, env, flags)
    console.report(event("refusal-told", limit_s=REPORT_REFUSAL_S))
    hurried = replace(settings, roll_call_timeout_s=min(REPORT_REFUSAL_S, settings.roll_call_timeout_s))
    training = TrainingCommand(Command((), env.inherited()), Path(os.devnull), "", 0.0, ExitFile(None))
    task = _task(refusing, hurried, training, 0)
    attempt = Attempt(training, lambda _place, _restarts: training, task, LaunchContext(console, inbox))
    try:
        with suppress(LaunchError, Interrupted, JobMovedError):
            attempt.join()
    finally:
        attempt.close()


def rendezvous_settings(topology: Topology, env: Environment, flags: TogetherFlags) -> RendezvousSettings:
    """Return where the rendezvous is, and how long nodes wait. Raises TopologyError as rendezvous_ports,
    and InputError as read_secret."""
    return RendezvousSettings(
        topology.master_addr,
        topology.master_port,
        rendezvous_ports(topology, env),
        flags.roll_call_timeout_s,
        flags.node_timeout_s,
        flags.max_restarts,
        read_secret(env),
        topology.spares,
        topology.min_nodes,
        flags.rank_order == BY_NETWORK,
        _places(topology),
    )


def _places(topology: Topology) -> Places:
    own = {rank: index for index, rank in enumerate(topology.place_ranks)}
    hosts, starts = topology.places, topology.restart_count or 0
    job = f"{topology.job_id} {starts}"  # a job that the scheduler restarts counts as another job here
    return Places(hosts, own.get(topology.node_rank) if hosts else None, topology.why_not_moved, job)


def fingerprint(plan: LaunchPlan, command: Command) -> Fingerprint:
    """Return what this node must have in common with the others."""
    directory = ""
    with suppress(OSError):  # removed in the meantime
        directory = str(Path.cwd())
    return fingerprint_of(
        plan,
        command.env,
        identity=_identity(),
        versions={**versions(), **_torch_facts()},
        git_revision=git_revision(plan.training.program.source),
        free_gib=storage.read(plan.log_path.parent).free_gib,
        user=str(os.getuid()),
        directory=directory,
    )


def _torch_facts() -> dict[str, str]:
    """Return what the torch of this interpreter was built with, without importing it; empty without torch.

    NCCL's version is that of its package, which torch's wheels for CUDA depend on.
    """
    build = packages.torch_build(packages.find(["torch"])["torch"])
    if build is None:
        return {}
    facts = {
        "torch": build.version,
        "torch release": ".".join(build.version.split(".")[:2]),
        "CUDA of torch": str(build.cuda),
    }
    nccl = next(iter(packages.versions(_NCCL_PACKAGES).values()), None)
    return {**facts, "NCCL": nccl} if nccl else facts


def _identity() -> str:
    return os.urandom(16).hex()
