"""``dist-launch wait``: run one node of a cluster until it is stopped."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path
from typing import Any

import click

from platform_launch import hardware
from platform_launch.cli import options
from platform_launch.cli.dist_launch import options as own
from platform_launch.cli.flags import seconds
from platform_launch.console import Console
from platform_launch.environment import Environment
from platform_launch.errors import HardwareError, LaunchError, UsageError
from platform_launch.hardware import Hardware
from platform_launch.hardware.network import address_towards
from platform_launch.plan.nccl import nccl_variables
from platform_launch.platforms import detect
from platform_launch.rendezvous.authentication import read_secret
from platform_launch.rendezvous.listening import rendezvous_ports
from platform_launch.text import Phrase


@click.command("wait")
@options.topology_options
@seconds("--timeout", "timeout_s", least=1, default=600, text="How long to wait for all nodes.")
@click.option("--sshd", is_flag=True, help="Start a private SSH server if none is listening.")
@own.ssh_options
def command(timeout_s: float, sshd: bool, **flags: Any) -> int:
    """Connect to the other nodes, let rank 0 log in, and wait until stopped (TERM, INT, QUIT)."""
    from platform_launch.dist_launch.cluster_keys import require_asyncssh

    require_asyncssh()
    from platform_launch.dist_launch.wait import WaitSettings, wait

    env = Environment.of_this_process()
    ssh = own.ssh(env, flags)
    topology = detect(env, options.overrides(flags))
    console = Console()
    machine = _detect(env, topology.master_addr, console)
    named_key = _named_key(env) if topology.node_rank else ""
    started = time.strftime("%Y%m%d-%H%M%S")
    recorder = Path.cwd() / "logs" / f"flight_dist-launch_{started}_rank"
    variables = nccl_variables(env, topology, machine, str(recorder))
    console.info(
        Phrase(
            "node {rank} of {nodes}, platform {platform}",
            rank=topology.node_rank,
            nodes=topology.nnodes,
            platform=topology.platform,
        )
    )
    for variable in variables:
        console.info(
            Phrase(
                "{name}={value}  # {reason}",
                name=variable.name,
                value=variable.value,
                reason=Phrase.of(variable.reason),
            )
        )
    if read_secret(env) is None and topology.nnodes > 1:
        console.info(
            "no PLATFORM_LAUNCH_SECRET: only the key that SSH_PUBLIC_KEY names may log in"
            if named_key
            else "no PLATFORM_LAUNCH_SECRET: the first key that rank 0 sends may log in to the others"
        )
    return wait(
        WaitSettings(
            rank=topology.node_rank,
            nnodes=topology.nnodes,
            job_id=topology.job_id,
            host=env.hostname,
            address=_address(topology.master_addr, machine, env),
            master_addr=topology.master_addr,
            rendezvous_ports=rendezvous_ports(topology, env),
            timeout_s=timeout_s,
            cluster_file=own.cluster_file(env),
            ssh_port=ssh.port or own.DEFAULT_SSH_PORT,
            ssh_user=_user(ssh.user),
            sshd=sshd,
            key=ssh.key,
            public_key=ssh.public_key,
            named_key=named_key,
            environment=env.inherited() | {variable.name: variable.value for variable in variables},
        )
    )


def _detect(env: Environment, master_addr: str, console: Console) -> Hardware:
    """Detect this machine's hardware. A broken driver is a reason to stay and debug it, not to exit."""
    try:
        return hardware.detect(env, master_addr=master_addr)
    except HardwareError as error:
        console.warn(Phrase("waiting anyway: {message}", message=error.message))
        return hardware.detect(env, master_addr=master_addr, assume="cpu")


def _address(master_addr: str, machine: Hardware, env: Environment) -> str:
    """Return the address by which the other nodes reach this one."""
    address = address_towards(master_addr, machine.interfaces)
    if address is not None:
        return address
    if env.address != env.hostname:
        return env.address
    if master_addr in ("localhost", "127.0.0.1", "::1"):
        return "127.0.0.1"
    raise LaunchError("this node has no address that others can reach", "check its network interfaces")


def _named_key(env: Environment) -> str:
    """Return the key that SSH_PUBLIC_KEY names on this node, empty if it is not set. Raises InputError."""
    from platform_launch.dist_launch.cluster_keys import read_public

    path = own.path_of(env.get("SSH_PUBLIC_KEY"))
    return read_public(path) if path is not None else ""


def _user(named: str | None) -> str:
    """Return the user who logs in to this node. Raises UsageError if there is no such user here."""
    try:
        return pwd.getpwnam(named.strip()).pw_name if named else pwd.getpwuid(os.geteuid()).pw_name
    except KeyError as error:
        raise UsageError(
            Phrase("SSH_USER={user!r}: no such user on this node", user=named)
            if named
            else Phrase("user {user} has no name here", user=os.geteuid()),
            "name a user that exists on every node, or add this one to /etc/passwd",
        ) from error
