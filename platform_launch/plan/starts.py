"""The command that starts a node's processes: one small function per launcher, values to values."""

from __future__ import annotations

import os

from platform_launch import helper
from platform_launch.environment import Environment
from platform_launch.hardware import Hardware
from platform_launch.hostlist import bracketed
from platform_launch.plan.request import Form, Request
from platform_launch.plan.training import Training
from platform_launch.plan.variables import EnvVar
from platform_launch.text import Phrase
from platform_launch.topology import Topology
from platform_launch.values import dataclass


@dataclass(frozen=True)
class Start:
    """A launcher's part of a plan.

    ``packages``: the modules that the interpreter must be able to import. ``env`` may have names that the
    platform set for the node: for the job they count processes.
    """

    argv: tuple[str, ...]
    packages: tuple[str, ...] = ()
    env: tuple[EnvVar, ...] = ()


def accelerate(
    request: Request, env: Environment, topology: Topology, _hardware: Hardware, training: Training
) -> Start:
    """``accelerate launch`` with the yaml, per-node values on the command line (they win)."""
    yaml, steps = training.accelerate_yaml, training.gradient_accumulation_steps
    assert yaml is not None
    accumulation: tuple[str, ...] = ()
    if yaml.uses_deepspeed and not yaml.names_json and steps is not None:
        accumulation = ("--gradient_accumulation_steps", str(steps))
    # accelerate's DeepSpeed path imports transformers without declaring it.
    deepspeed = ("deepspeed", "transformers") if yaml.uses_deepspeed else ()
    return Start(
        argv=(
            *(request.python, "-m", "accelerate.commands.launch"),
            *("--config_file", str(yaml.path)),
            *("--num_machines", str(topology.nnodes)),
            *("--num_processes", str(topology.world_size)),
            *("--machine_rank", str(topology.node_rank)),
            *("--main_process_ip", bracketed(topology.master_addr)),
            *("--main_process_port", str(topology.master_port)),
            *accumulation,
            *_python_program(training, "--module", template=yaml.uses_torchrun),
        ),
        packages=("torch", "accelerate", *deepspeed),
        env=(*_node(topology), *_elastic(env)),
    )


def torchrun(
    request: Request, env: Environment, topology: Topology, _hardware: Hardware, training: Training
) -> Start:
    """torchrun with static rendezvous: the ranks are known, so nothing is negotiated.

    c10d is for nodes that come and go; it assigns ranks by arrival and takes the master's address from a host
    name that other pods often cannot resolve.
    """
    return Start(
        argv=(
            *(request.python, "-m", "torch.distributed.run"),
            *("--nnodes", str(topology.nnodes)),
            *("--nproc-per-node", str(topology.nproc_per_node)),
            *("--node-rank", str(topology.node_rank)),
            *("--master-addr", bracketed(topology.master_addr)),
            *("--master-port", str(topology.master_port)),
            *_python_program(training, "-m", template=True, dashes=True),
        ),
        packages=("torch",),
        env=(*_node(topology), *_elastic(env)),
    )


def python(
    request: Request, _env: Environment, topology: Topology, _hardware: Hardware, training: Training
) -> Start:
    """One plain process per node: the only one, or one that starts the others itself."""
    return Start((request.python, *training.program.python_words), env=_whole_node(topology))


def command(
    _request: Request, env: Environment, topology: Topology, _hardware: Hardware, training: Training
) -> Start:
    """A user's command, once per node. What it starts in turn reads the node's rank from variables.

    That may be torchrun, called by a script or by a tool such as llamafactory-cli: it takes its defaults from
    ``PET_`` and the name of a flag (torch/distributed/argparse_util.py).
    """
    from platform_launch.plan.nested_launchers import refuse_launchers_without_place

    program = training.program
    refuse_launchers_without_place(program, topology)
    variables = [*_whole_node(topology)]
    for name, value in (
        ("NNODES", topology.nnodes),
        ("NODE_RANK", topology.node_rank),
        ("NPROC_PER_NODE", topology.nproc_per_node),
        ("MASTER_ADDR", bracketed(topology.master_addr)),
        ("MASTER_PORT", topology.master_port),
    ):
        variables.append(
            _variable(
                f"PET_{name}", value, Phrase("as {name}, for a torchrun that the command starts", name=name)
            )
        )
    # Launch scripts with their own names, each with a default: OpenMMLab's dist_train.sh, XTuner.
    variables += [
        _variable(name, value, Phrase("as {name}, for launch scripts that read it so", name=f"MASTER_{name}"))
        for name, value in (("ADDR", bracketed(topology.master_addr)), ("PORT", topology.master_port))
        if name not in env
    ]
    if program.extra_path:
        path = os.pathsep.join(filter(None, (program.extra_path, env.get("PATH", ""))))
        variables.append(
            _variable("PATH", path, "the command was found next to the interpreter, not on PATH")
        )
    return Start((program.target, *program.arguments), env=(*variables, *_elastic(env)))


def jax(
    request: Request, env: Environment, topology: Topology, hardware: Hardware, training: Training
) -> Start:
    """One process per node, or several together, with their ranks in JAX_… and the usual variables."""
    nproc = topology.nproc_per_node or 1
    first = topology.node_rank * nproc
    coordinator = f"{bracketed(topology.master_addr)}:{topology.master_port}"
    common = [
        *_node(topology),
        _variable("JAX_COORDINATOR_ADDRESS", coordinator, "node 0, for jax.distributed.initialize"),
        _variable("JAX_NUM_PROCESSES", topology.world_size, "processes in the job, for the same"),
        *_master(topology),
        *_job_of_processes(topology),
        *_xla(env, hardware),
    ]
    program = (request.python, *training.program.python_words)
    if nproc == 1:
        own = _variable("JAX_PROCESS_ID", first, "rank of this node's process, for the same")
        return Start(program, ("jax",), (*common, own, *_rank(topology, first, 0)))
    ranks, local_ranks = range(first, first + nproc), range(nproc)
    each: dict[str, range] = {"JAX_PROCESS_ID": ranks, "RANK": ranks, "LOCAL_RANK": local_ranks}
    if hardware.gpus.devices:
        # All GPUs stay visible, so that NCCL can connect neighbours directly; JAX takes the one named here.
        each["JAX_LOCAL_DEVICE_IDS"] = local_ranks
    lists = tuple(f"{name}={','.join(map(str, values))}" for name, values in each.items())
    grace = () if request.grace_s is None else ("--grace-period", f"{request.grace_s:g}")
    argv = helper.command("side-by-side", *grace, *lists, "--", *program, python=request.python)
    return Start(argv, ("jax",), tuple(common))


def _python_program(
    training: Training, module_flag: str, *, template: bool, dashes: bool = False
) -> tuple[str, ...]:
    """Return the program for a launcher.

    ``template``: torchrun reads each word as a string.Template. ``dashes``: it refuses a script's option that
    abbreviates several of its own (``--start``), unless ``--`` comes before the script.
    """
    program = training.program
    module = (module_flag,) if program.form is Form.MODULE else ()
    words: tuple[str, ...] = (program.target, *program.arguments)
    if template:
        words = tuple(word.replace("$", "$$") for word in words)
    cut = ("--",) if dashes and any(word.startswith("-") for word in program.arguments) else ()
    return (*module, *cut, *words)


def _variable(name: str, value: object, reason: str) -> EnvVar:
    return EnvVar(name, str(value), "launcher", reason)


def _node(topology: Topology) -> list[EnvVar]:
    return [
        _variable("NNODES", topology.nnodes, "nodes in the job"),
        _variable("NODE_RANK", topology.node_rank, "rank of this node"),
    ]


def _master(topology: Topology) -> list[EnvVar]:
    return [
        _variable("MASTER_ADDR", topology.master_addr, "node 0"),
        _variable("MASTER_PORT", topology.master_port, "rendezvous port on node 0"),
    ]


def _whole_node(topology: Topology) -> tuple[EnvVar, ...]:
    """Return the variables of a process that is the node's only one, or that starts the others itself."""
    reason = Phrase("processes of this node, for the program to start")
    node = [
        *_node(topology),
        _variable("NPROC_PER_NODE", topology.nproc_per_node, reason),
        *_master(topology),
    ]
    if topology.nproc_per_node == 1:
        node += [*_job_of_processes(topology), *_rank(topology, topology.node_rank, 0)]
    return tuple(node)


def _job_of_processes(topology: Topology) -> list[EnvVar]:
    return [
        _variable("WORLD_SIZE", topology.world_size, "processes in the job"),
        _variable("LOCAL_WORLD_SIZE", topology.nproc_per_node, "processes of this node"),
    ]


def _rank(topology: Topology, rank: int, local_rank: int) -> list[EnvVar]:
    return [
        _variable("RANK", rank, Phrase("this process among {processes}", processes=topology.world_size)),
        _variable("LOCAL_RANK", local_rank, "this process on its node"),
    ]


def _elastic(env: Environment) -> tuple[EnvVar, ...]:
    """Return the variables that make torchrun, also inside accelerate, leave time for a checkpoint.

    Sources: pytorch pull requests 160690 (``--signals-to-handle``; its environment name is overwritten by the
    flag's default, so the flag's own PET_ name it is) and 172596 (shutdown timeout). A torch from before them
    ends by SIGUSR1, and kills its workers 30 s after SIGTERM.
    """
    wanted = (
        EnvVar(
            "PET_SIGNALS_TO_HANDLE",
            "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2",
            "launcher",
            "torchrun passes on a batch system's early warning instead of dying of it",
        ),
        EnvVar(
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
            "600",
            "launcher",
            "seconds for a last checkpoint: torchrun would kill after 30; --grace-period still counts",
        ),
    )
    return tuple(variable for variable in wanted if variable.name not in env)


def _xla(env: Environment, hardware: Hardware) -> list[EnvVar]:
    """Return JAX's choices of devices and memory, leaving out those already made."""
    wanted = []
    vendor = hardware.accelerator.vendor
    platforms = "cpu" if vendor is None else vendor.jax
    if platforms and "JAX_PLATFORM_NAME" not in env:  # the older name, which a user may have set
        reason = (
            Phrase("a broken plugin fails instead of training on the CPU")
            if vendor
            else Phrase("no GPU: JAX uses the CPU")
        )
        wanted.append(_variable("JAX_PLATFORMS", platforms, reason))
    if vendor is not None and vendor.reads_nccl:
        wanted += [
            _variable(
                "XLA_PYTHON_CLIENT_PREALLOCATE",
                "false",
                "GPU memory is allocated as needed, not at the start",
            ),
            _variable(
                "XLA_PYTHON_CLIENT_MEM_FRACTION",
                "0.9",
                "the share of a GPU's memory that XLA may use; its own default is 0.75",
            ),
        ]
    return [variable for variable in wanted if variable.name not in env]
