"""A node's run together with the other nodes of its job: join, train, agree, and perhaps restart.

A job of one node does not import this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from platform_launch.console import Console
from platform_launch.environment import Environment
from platform_launch.errors import LaunchError
from platform_launch.events import event
from platform_launch.hardware import packages, storage
from platform_launch.launch.attempt import Attempt, JobMovedError
from platform_launch.launch.conclusion import Result, report_outcome
from platform_launch.launch.exit_code import ExitFile, job_exit_code
from platform_launch.launch.stages import versions
from platform_launch.launch.training_command import STOP, NodePlace, TrainingCommand
from platform_launch.launch.watched_training import LaunchContext
from platform_launch.observe.steps import highest_step
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.plan.request import BY_NETWORK, RunOptions
from platform_launch.project import git_revision
from platform_launch.rendezvous.authentication import read_secret
from platform_launch.rendezvous.ending import EndKind, RunOutcome
from platform_launch.rendezvous.fingerprint import Fingerprint, fingerprint_of
from platform_launch.rendezvous.listening import rendezvous_ports
from platform_launch.rendezvous.restarts import FailedRun, NotAgain, NotAgainKind, why_not_again
from platform_launch.rendezvous.run.hosts import RendezvousHosts
from platform_launch.rendezvous.run.task import Moved, RunTask
from platform_launch.supervise import Command, Outcome
from platform_launch.supervise.signals import Interrupted, SignalInbox
from platform_launch.topology import Topology

_NCCL_PACKAGES = ("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
# How long a node that cannot start tries to reach node 0 to report it.
_REPORT_REFUSAL_S = 30.0


def run_together(
    training_at: Callable[[NodePlace], TrainingCommand], task: RunTask, context: LaunchContext
) -> Result:
    """Run this node's part of a job together with the other nodes. Main thread only.

    ``training_at`` returns what this node runs with a given rank; a spare waits for one. Raises LaunchError
    if the nodes cannot start, the same on all of them, Interrupted if a signal stops this node before all
    have joined, and SpareNotNeededError. A node whose processes finished exits with 0, regardless of the
    other nodes.
    """
    console = context.console
    job = _JobSoFar(training_at, task, console)
    console.report(
        event(
            "roll-call-opened",
            nnodes=task.node.nnodes,
            master_addr=task.master_addr,
            port=task.ports[0],
            limit_s=task.roll_call_timeout_s,
        )
    )
    while True:
        attempt = Attempt(job.training, job.for_restart, job.task, context)
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
                agreed.first_failed,
                attempt.health,
                attempt.saves,
                tuple(job.nodes),
            )
        job.restart(agreed)


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


class _JobSoFar:
    """What a node knows about its job over all attempts.

    ``task`` is what the rendezvous of the next attempt needs, and ``place`` is this node's place in it;
    ``nodes`` is how many nodes each attempt had that this one took part in.
    """

    def __init__(
        self, training_at: Callable[[NodePlace], TrainingCommand], task: RunTask, console: Console
    ) -> None:
        self.task = task
        self.nodes: list[int] = []
        self.place = NodePlace(task.node.node_rank, task.master_addr, task.node.nnodes)
        self.training = training_at(self.place)
        self._training_at = training_at
        self._console = console
        self._failed: list[FailedRun] = []
        self._port_changed = False

    def for_restart(self, place: NodePlace, restarts: int) -> TrainingCommand:
        """Return what this node runs in a place after so many restarts."""
        return self._training_at(place).for_restart(restarts)

    def follow(self, moved: Moved) -> None:
        """Join at the host that the rendezvous moved to."""
        node = self.task.node
        node = replace(node, restarts_used=max(node.restarts_used, moved.restarts_used))
        # Another node has rank 0 there.
        spare = self.task.spare or node.node_rank == 0
        self.task = replace(self.task, node=node, master_addr=moved.host, spare=spare, lost=True)

    def record(self, attempt: Attempt, outcome: Outcome) -> NotAgain | None:
        """Record an attempt and its place; return why this node wants no restart, None if it does."""
        self.task = replace(attempt.task, ports=self.task.ports)
        self.nodes.append(attempt.place.nnodes)
        if attempt.place != self.place:
            self.place, self.training = attempt.place, self._training_at(attempt.place)
        max_restarts, ports = self.task.max_restarts, self.task.ports
        written = attempt.newest_checkpoint() if max_restarts and outcome.exit_code else None
        self._failed.append(FailedRun(highest_step(attempt.output.text()), outcome.duration_s, written))
        restarts = self.task.node.restarts_used - self._port_changed
        not_again = why_not_again(self._failed, restarts, max_restarts)
        if len(ports) > 1 and not self._port_changed and attempt.was_in_the_way(outcome):
            self._port_changed, not_again = True, None
            self._failed.clear()
            used = attempt.task.ports[0]
            self._console.report(event("port-given-up", port=used))
            self.task = replace(self.task, ports=tuple(port for port in ports if port != used))
        if attempt.hung and self.training.hangs and self.training.hangs.on_hang == STOP:
            return NotAgain(NotAgainKind.HANG)
        return not_again

    def restart(self, agreed: RunOutcome) -> None:
        """Prepare the restart, and report it with its reason."""
        restarts, lost = self.task.node.restarts_used + 1, _lost_node_0(agreed)
        node = replace(self.task.node, restarts_used=restarts)
        self.task = task = replace(self.task, node=node, replaced=agreed.replaced, lost=lost)
        report_outcome(agreed, self._console, in_full=lost or self.place.node_rank == 0)
        if lost and task.spares and task.rendezvous_hosts.why_not:
            why_not, limit_s = task.rendezvous_hosts.why_not, task.roll_call_timeout_s
            self._console.report(event("job-stays", reason=why_not, limit_s=limit_s))
        most = max(restarts, task.max_restarts)
        self._console.report(event("nodes-restart", restart=restarts, max_restarts=most))


def _lost_node_0(agreed: RunOutcome) -> bool:
    """Return whether a run ended without node 0, which may then miss the next attempt."""
    kind = agreed.ending.kind if agreed.ending is not None else None
    return 0 in agreed.replaced or kind in (EndKind.COORDINATOR_GONE, EndKind.COORDINATOR_SILENT)


def refuse(
    refusal: LaunchError,
    topology: Topology,
    env: Environment,
    options: RunOptions,
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
    task = run_task(refusing, topology, env, options, grace_s=0.0)
    console.report(event("refusal-told", limit_s=_REPORT_REFUSAL_S))
    task = replace(task, roll_call_timeout_s=min(_REPORT_REFUSAL_S, task.roll_call_timeout_s))
    training = TrainingCommand(Command((), env.inherited()), Path(os.devnull), "", 0.0, ExitFile(None))
    attempt = Attempt(training, lambda _place, _restarts: training, task, LaunchContext(console, inbox))
    try:
        with suppress(LaunchError, Interrupted, JobMovedError):
            attempt.join()
    finally:
        attempt.close()


def run_task(
    node: Fingerprint, topology: Topology, env: Environment, options: RunOptions, grace_s: float
) -> RunTask:
    """Return where the rendezvous is, and the user's options for it; node 0's ``max_restarts`` applies.

    Raises TopologyError as rendezvous_ports, and InputError as read_secret.
    """
    own = {rank: index for index, rank in enumerate(topology.place_ranks)}
    hosts, starts = topology.places, topology.restart_count or 0
    job = f"{topology.job_id} {starts}"  # a job that the scheduler restarts counts as another job here
    place = own.get(topology.node_rank) if hosts else None
    return RunTask(
        node,
        topology.master_addr,
        topology.master_port,
        rendezvous_ports(topology, env),
        options.roll_call_timeout_s,
        options.node_timeout_s,
        grace_s,
        read_secret(env),
        topology.spares,
        spare=topology.is_spare,
        max_restarts=options.max_restarts,
        min_nodes=topology.min_nodes,
        trained=node.nnodes,
        by_network=options.rank_order == BY_NETWORK,
        rendezvous_hosts=RendezvousHosts(hosts, place, topology.why_not_moved, job),
    )


def fingerprint(plan: LaunchPlan, command: Command) -> Fingerprint:
    """Return what this node must share with the others."""
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
    """Return what this interpreter's torch was built with, without importing it; empty without torch.

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
