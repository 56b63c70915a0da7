"""``platform-launch simulate``: several nodes of one job on this machine, started as a platform would."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from platform_launch import hardware
from platform_launch.cli import launch_options, run
from platform_launch.cli.options import together
from platform_launch.cli.voice import Voice
from platform_launch.environment import Environment
from platform_launch.errors import UsageError
from platform_launch.hardware import Hardware
from platform_launch.plan import LaunchPlan, build_plan
from platform_launch.project import project_root
from platform_launch.record import first_failed
from platform_launch.settings.request import LAUNCHERS
from platform_launch.why.sources import node_of


@click.command(
    "simulate",
    cls=run.ScriptArguments,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
)
@click.option("--nodes", type=click.IntRange(1, 64), default=2, show_default=True, help="Nodes to start.")
@click.argument("run_options", nargs=-1, type=click.UNPROCESSED, metavar="[run options]")
def command(nodes: int, run_options: tuple[str, ...]) -> int:
    """Start several nodes of a job on this machine, on the CPU or splitting its GPUs.

    Takes the options of `run`; arguments after -- go to the script. Without --script or --config the
    small training config is used. One failing node ends all.
    """
    from platform_launch.simulate import simulate
    from platform_launch.supervise import DEFAULT_GRACE_S, Command

    # Refuse a wrong option here, once, instead of on every node.
    values = run.command.make_context("run", list(run_options)).params
    for name in ("nnodes", "node_rank", "master_addr", "master_port", "platform", "print_env", "assume_gpus"):
        if values[name]:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} cannot be used with simulate", "simulate decides it; see --nodes")
    options = list(run_options)
    root = project_root()
    if values["launcher"] == LAUNCHERS[0] and values["script"] is None and values["config"] is None:
        options += ["--config", str(root / "configs" / "taehv_config_small.py")]
    env = Environment.of_this_process()
    nproc = values["nproc_per_node"] or 1
    shares = node_variables(hardware.detect(env), nodes, nproc, Voice())
    ports = _free_ports()
    environments = [
        {**env.inherited(), **share, **_platform(nodes, rank, *ports)} for rank, share in enumerate(shares)
    ]
    logs = _plan(options, Environment(environments[0])).log_path.parent
    of_earlier_launches = set(logs.glob("train_*"))
    arguments = [*options, "--", *click.get_current_context().meta["script_args"]]
    commands = [Command((*_entrypoint(root), *arguments), variables) for variables in environments]
    grace_s = DEFAULT_GRACE_S if values["grace_s"] is None else values["grace_s"]
    code = simulate(commands, [f"node {rank}" for rank in range(nodes)], grace_s=grace_s)
    written = sorted(set(logs.glob("train_*")) - of_earlier_launches)
    rank = first_failed(path for path in written if path.suffix == ".json")
    if rank is not None:
        log = next((path for path in written if path.suffix == ".log" and node_of(path.name) == rank), None)
        # Where the nodes speak: their last words came on standard output too.
        click.echo(f"[ERROR] node {rank} failed first; its log: {log or 'none was written'}")
    return code


def _plan(run_options: Sequence[str], env: Environment) -> LaunchPlan:
    """Plan node 0's launch, so that what every node would refuse is refused here, once."""
    flags = run.command.make_context("run", list(run_options)).params
    together(flags)
    for name in ("no_doctor", "print_env", "assume_gpus", "form"):
        del flags[name]
    return build_plan(
        env, hardware.detect(env, master_addr=env["MASTER_ADDR"]), launch_options.request(flags)
    )


def _platform(nodes: int, rank: int, master_port: int, meeting_port: int) -> dict[str, str]:
    """Return what the simplest platform sets: the four names that count nodes, and a free port to meet at."""
    return {
        "WORLD_SIZE": str(nodes),
        "RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(master_port),
        "INIT_MASTER_PORT": str(meeting_port),
    }


def node_variables(machine: Hardware, nodes: int, nproc_per_node: int, voice: Voice) -> list[dict[str, str]]:
    """Split the machine among the nodes: GPUs where there is at least one for each, else CPUs alone."""
    gpus = [gpu.uuid if gpu.mig else str(gpu.index) for gpu in machine.gpus.devices]
    each = len(gpus) // nodes
    threads = max(1, int(machine.host.cpus // (nodes * nproc_per_node)))
    # Every node is this machine: the loopback interface reaches them all, whatever its name resolves to.
    common = {"OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    if each:
        return [
            {**common, "CUDA_VISIBLE_DEVICES": ",".join(gpus[rank * each : (rank + 1) * each])}
            for rank in range(nodes)
        ]
    if gpus:
        voice.warn(f"{len(gpus)} GPU(s) cannot be split among {nodes} nodes: simulating on the CPU")
    return [{**common, "CUDA_VISIBLE_DEVICES": ""} for _ in range(nodes)]


def _entrypoint(root: Path) -> Sequence[str]:
    """Return the command a platform would start: the shell entrypoint, or the module without a checkout."""
    script = root / "start_multinode_platform.sh"
    if script.is_file():
        return (str(script),)
    return (sys.executable, "-m", "platform_launch", "run")


def _free_ports() -> tuple[int, int]:
    """Return two ports that are free now."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]
