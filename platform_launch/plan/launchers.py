"""Which launcher starts a node's processes: what each one reads, and how many processes it starts."""

from __future__ import annotations

from collections.abc import Callable

from platform_launch.environment import Environment
from platform_launch.errors import UsageError
from platform_launch.hardware import Hardware
from platform_launch.plan import processes, starts
from platform_launch.plan.request import COMMAND, EXAMPLES, Request
from platform_launch.plan.starts import Start
from platform_launch.plan.training import Training
from platform_launch.text import Phrase
from platform_launch.topology import Topology

_Launcher = Callable[[Request, Environment, Topology, Hardware, Training], Start]
_LAUNCHERS: dict[str, _Launcher] = {
    "accelerate": starts.accelerate,
    "torchrun": starts.torchrun,
    "jax": starts.jax,
    "python": starts.python,
    COMMAND: starts.command,
}


def check(request: Request) -> None:
    """Refuse flags that the chosen launcher does not use. Raises UsageError."""
    if request.started_by == COMMAND and (request.launcher is not None or request.jax_per_gpu):
        flag = "--jax-per-gpu" if request.launcher is None else f"--launcher {request.launcher}"
        raise UsageError(
            Phrase("{flag} starts Python processes, so it cannot be combined with a command", flag=flag),
            "leave it out: the command starts once per node; or name a --script or a --module before --",
        )
    wanted = EXAMPLES[request.example].launcher if request.example else request.started_by
    if request.started_by != wanted:
        raise UsageError(
            Phrase(
                "--example {name} is made for --launcher {wanted}, not {launcher}",
                name=request.example,
                wanted=wanted,
                launcher=request.started_by,
            ),
            "leave --launcher out",
        )
    launcher = Phrase("a command") if request.started_by == COMMAND else f"--launcher {request.started_by}"
    if request.started_by != "accelerate":
        for flag, given in (
            ("--deepspeed-config", request.deepspeed_config),
            ("--recipe", request.recipe),
            ("--strict", request.strict),
        ):
            if given:
                raise UsageError(
                    Phrase(
                        "{flag} works only with --launcher accelerate: {launcher} reads no recipe and no "
                        "yaml",
                        flag=flag,
                        launcher=launcher,
                    )
                )
    if request.jax_per_gpu and request.started_by != "jax":
        raise UsageError(
            "--jax-per-gpu works only with --launcher jax", "add --launcher jax, or leave it out"
        )
    if _one_jax_process(request) and (request.overrides.nproc_per_node or 1) > 1:
        raise UsageError(
            Phrase(
                "--nproc-per-node {processes}: {launcher} starts one process per node, which drives all of "
                "its GPUs",
                processes=request.overrides.nproc_per_node,
                launcher=launcher,
            ),
            "add --jax-per-gpu for one process per GPU",
        )


def processes_per_node(
    request: Request, env: Environment, topology: Topology, hardware: Hardware
) -> tuple[int, str]:
    """Return the number of processes on this node, and its source.

    Raises HardwareError or TopologyError if they could not use the devices.
    """
    by_flag = request.overrides.nproc_per_node is not None
    processes.check_accelerator(env, hardware, uncounted=by_flag or _one_jax_process(request))
    if _one_jax_process(request):
        return 1, Phrase("--launcher jax: one process drives all GPUs of its node")
    given, source = topology.nproc_per_node, topology.sources.get("nproc_per_node", "")
    if hardware.accelerator.vendor is None and source == topology.sources.get("accelerators"):
        given = None  # it counts GPUs, and the user asked for the CPU
    return processes.processes_per_node(given, source, hardware)


def ranks_known(request: Request, training: Training, nproc: int) -> bool:
    """Return whether the launcher starts several processes on this node, each with its LOCAL_RANK."""
    if nproc < 2 or request.started_by in ("python", COMMAND) or _one_jax_process(request):
        return False
    return training.accelerate_yaml is None or training.accelerate_yaml.uses_torchrun


def unused_gpus(request: Request, nproc_per_node: int, hardware: Hardware) -> list[str]:
    """Warn about idle GPUs, if each process uses one GPU."""
    if request.started_by in ("python", COMMAND) or _one_jax_process(request):
        return []
    return processes.unused_gpus(nproc_per_node, hardware)


def reads(request: Request, variable: str) -> bool:
    """Return whether a job under this launcher uses one of our variables."""
    return request.started_by != "jax" or not variable.startswith(("TORCH_", "DS_"))


def start(
    request: Request, env: Environment, topology: Topology, hardware: Hardware, training: Training
) -> Start:
    """Return what the requested launcher starts on this node; ``nproc_per_node`` must be known."""
    return _LAUNCHERS[request.started_by](request, env, topology, hardware, training)


def _one_jax_process(request: Request) -> bool:
    return request.started_by == "jax" and not request.jax_per_gpu
