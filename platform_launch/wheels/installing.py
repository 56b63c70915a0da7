"""Installs a wheel on this node if its note fits, and reports the state of its DeepSpeed."""

from __future__ import annotations

import shlex
from pathlib import Path

from platform_launch import hardware
from platform_launch.console import Console
from platform_launch.environment import Environment
from platform_launch.errors import InstallationError
from platform_launch.hardware import Gpu
from platform_launch.hardware.host import instructions
from platform_launch.supervise import Command, capture
from platform_launch.text import Listed, Phrase, joined
from platform_launch.wheels import note
from platform_launch.wheels.machine import environment_for, query_interpreter
from platform_launch.wheels.report import NodeReport, query_node, warnings

_PIP_LIMIT_S = 600.0


def install(wheel: Path, python: str, env: Environment, console: Console) -> None:
    """Install a wheel after comparing its note with this node. Raises InstallationError."""
    wheel = wheel.absolute()
    described = note.read(wheel)
    node = query_interpreter(python, env.inherited())
    gpus = [gpu.compute_capability for gpu in hardware.detect(env).gpus.devices if gpu.compute_capability]
    reasons = note.mismatches(described, node, gpus=gpus, instructions=instructions())
    if reasons:
        raise InstallationError(
            Phrase(
                "{wheel} was not built for this node:\n       {reasons}",
                wheel=wheel.name,
                reasons=Listed(reasons, Listed.LINES),
            ),
            "build one on this node, or on one like it: platform-launch wheel build",
        )
    # Without dependencies: a wheel must never replace a node's torch.
    argv = (python, "-m", "pip", "install", "--no-deps", "--force-reinstall", "--no-input", str(wheel))
    command = Command(argv, environment_for(python, env.inherited()), cwd=wheel.parent)
    answer = capture(command, timeout_s=_PIP_LIMIT_S)
    if answer.exit_code != 0:
        raise InstallationError(
            Phrase(
                "pip could not install {wheel}: {problem}",
                wheel=wheel.name,
                problem=answer.failure(_PIP_LIMIT_S),
            ),
            Phrase("to see all: {command}", command=shlex.join(argv)),
        )
    console.success(
        Phrase(
            "installed {wheel} with {ops}, for {python}",
            wheel=wheel.name,
            ops=joined(described.ops),
            python=python,
        )
    )
    warn(report_of_this_node(python, env, timeout_s=300), console)


def report_of_this_node(python: str, env: Environment, timeout_s: float) -> NodeReport:
    """Return the report of an interpreter's DeepSpeed on this node. Raises InstallationError."""
    gpus = [_described(gpu) for gpu in hardware.detect(env).gpus.devices]
    return query_node(python, env.inherited(), hostname=env.hostname, gpus=gpus, timeout_s=timeout_s)


def warn(node: NodeReport, console: Console) -> None:
    """Print what will cost time or make a job fail."""
    for warning in warnings(node):
        console.warn(warning)


def _described(gpu: Gpu) -> str:
    capability = gpu.compute_capability
    return gpu.name if capability is None else f"{gpu.name} ({capability[0]}.{capability[1]})"
