"""What a node brings when the nodes of its job meet: nothing of it is imported where a node trains alone."""

from __future__ import annotations

import os

from platform_launch.console import Console
from platform_launch.environment import Environment
from platform_launch.errors import LaunchError
from platform_launch.hardware import packages, storage
from platform_launch.launch.options import TogetherFlags
from platform_launch.launch.run import RendezvousSettings, run_together, tell
from platform_launch.launch.stages import versions
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.project import git_revision
from platform_launch.rendezvous.authentication import read_secret
from platform_launch.rendezvous.fingerprint import Fingerprint, take
from platform_launch.rendezvous.listening import rendezvous_ports
from platform_launch.rendezvous.run.places import Places
from platform_launch.supervise import Command
from platform_launch.supervise.signals import SignalInbox
from platform_launch.topology import Topology

_NCCL_PACKAGES = ("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13")

__all__ = ["fingerprint", "refuse", "rendezvous_settings", "run_together"]


def refuse(
    refusal: LaunchError,
    topology: Topology,
    env: Environment,
    flags: TogetherFlags,
    console: Console,
    inbox: SignalInbox,
) -> None:
    """Let the other nodes know why this one does not start."""
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
    tell(refusing, rendezvous_settings(topology, env, flags), env.inherited(), console, inbox)


def rendezvous_settings(topology: Topology, env: Environment, flags: TogetherFlags) -> RendezvousSettings:
    """Return where the rendezvous is, and for how long nodes wait. Raises TopologyError as rendezvous_ports,
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
        _places(topology),
    )


def _places(topology: Topology) -> Places:
    own = {0: 0, **{topology.nnodes + index: index + 1 for index in range(topology.spares)}}
    hosts, starts = topology.places, topology.restart_count or 0
    job = f"{topology.job_id} {starts}"  # what a scheduler starts again is another job here
    return Places(hosts, own.get(topology.node_rank) if hosts else None, topology.why_not_moved, job)


def fingerprint(plan: LaunchPlan, command: Command) -> Fingerprint:
    """Return what this node has in common with the others, or ought to have."""
    return take(
        plan,
        command.env,
        identity=_identity(),
        versions={**versions(), **_torch_facts()},
        git_revision=git_revision(plan.training.program.source),
        free_gib=storage.read(plan.log_path.parent).free_gib,
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
