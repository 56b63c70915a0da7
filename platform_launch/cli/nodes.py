"""Hand-off: this node's training alone, or together with those of the other nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from platform_launch.cli.options import TogetherFlags
from platform_launch.cli.voice import Voice
from platform_launch.environment import Environment
from platform_launch.errors import LaunchError, TopologyError
from platform_launch.hardware import storage
from platform_launch.node import Meeting, Result, Training, run_together, tell
from platform_launch.plan import LaunchPlan
from platform_launch.record import git_revision, versions
from platform_launch.rollcall.fingerprint import Fingerprint, take
from platform_launch.supervise import DEFAULT_GRACE_S, Command, supervise
from platform_launch.topology import Topology

_HIGHEST_PORT = 65535


def train(
    plan: LaunchPlan, env: Environment, grace_s: float | None, flags: TogetherFlags, voice: Voice
) -> Result:
    """Run the plan to its end. Raises LaunchError when the nodes cannot start together."""
    command = Command(plan.argv, plan.child_environment(env.inherited()))
    grace_s = DEFAULT_GRACE_S if grace_s is None else grace_s
    if plan.topology.nnodes == 1 or flags.no_roll_call:
        if plan.topology.nnodes > 1:
            voice.info("starting training, without waiting for the other nodes")
        outcome = supervise(command, log_path=plan.log_path, prefix=voice.prefix, grace_s=grace_s)
        failed = outcome.exit_code != 0 and outcome.stopped_by is None
        return Result(outcome.exit_code, outcome, first_failed=plan.topology.node_rank if failed else None)
    return run_together(
        Training(command, plan.log_path, voice.prefix, grace_s),
        _fingerprint(plan, command),
        meeting(plan.topology, env, flags),
        voice.say,
    )


@contextmanager
def telling_the_others(
    topology: Topology, env: Environment, flags: TogetherFlags, voice: Voice
) -> Iterator[None]:
    """Let the other nodes know why this one does not start: they would wait for it, and not know why."""
    try:
        yield
    except LaunchError as error:
        if topology.nnodes > 1 and not flags.no_roll_call:
            fingerprint = Fingerprint(
                topology.node_rank,
                topology.nnodes,
                env.hostname,
                (env.address,) if env.address != env.hostname else (),
                _identity(),
                topology.job_id,
                refusal=error.message,
                refusal_code=error.exit_code,
            )
            voice.error(error.message)
            tell(fingerprint, meeting(topology, env, flags), env.inherited(), voice.say)
        raise


def meeting(topology: Topology, env: Environment, flags: TogetherFlags) -> Meeting:
    """Return where the nodes meet, and for how long they wait. Raises TopologyError as meeting_port."""
    return Meeting(
        topology.master_addr,
        topology.master_port,
        meeting_port(topology, env),
        flags.roll_call_timeout_s,
        flags.node_timeout_s,
        flags.max_restarts,
    )


def meeting_port(topology: Topology, env: Environment) -> int:
    """Return the port of node 0 where the nodes meet: INIT_MASTER_PORT, by default the one after MASTER_PORT.

    Raises TopologyError when INIT_MASTER_PORT is no port, or is MASTER_PORT.
    """
    chosen = env.port("INIT_MASTER_PORT")
    above = topology.master_port + 1
    port = chosen.value if chosen else above if above <= _HIGHEST_PORT else topology.master_port - 1
    if port == topology.master_port:
        raise TopologyError(
            f"INIT_MASTER_PORT={port} is MASTER_PORT too: expected a port of its own for the roll call",
            "unset INIT_MASTER_PORT to use the port after MASTER_PORT, or pass --no-roll-call",
        )
    return port


def _fingerprint(plan: LaunchPlan, command: Command) -> Fingerprint:
    return take(
        plan,
        command.env,
        identity=_identity(),
        versions=versions(),
        git_revision=git_revision(plan.training.script),
        free_gib=storage.look(plan.log_path.parent).free_gib,
    )


def _identity() -> str:
    return os.urandom(16).hex()
