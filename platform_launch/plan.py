"""The launch plan: everything that will run, decided and frozen. What is printed is what runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from platform_launch.environment import Environment
from platform_launch.hardware import Hardware
from platform_launch.platforms import detect
from platform_launch.settings import found_variables, launchers, nccl, processes
from platform_launch.settings.request import Request
from platform_launch.settings.training import Training, choose_training
from platform_launch.settings.variables import EnvVar, Removal
from platform_launch.topology import Topology


@dataclass(frozen=True)
class LaunchPlan:
    """One node's launch. Frozen: rendering and running only read it.

    ``env`` is what this launcher adds to the environment and ``removed`` what it takes out; the child gets
    :meth:`child_environment`. ``log_path`` is where the output is kept beside the terminal. ``launcher``
    names who starts the node's processes, ``packages`` the modules its interpreter must have for that.
    """

    topology: Topology
    hardware: Hardware
    training: Training
    launcher: str
    packages: tuple[str, ...]
    argv: tuple[str, ...]
    env: tuple[EnvVar, ...]
    removed: tuple[Removal, ...]
    job_name: str
    log_path: Path
    warnings: tuple[str, ...] = ()

    def child_environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the full environment of the training process."""
        gone = {removal.name for removal in self.removed}
        kept = {name: value for name, value in inherited.items() if name not in gone}
        return kept | {variable.name: variable.value for variable in self.env}

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form of ``--print-env --format json`` and of the launch record."""
        return {
            "topology": self.topology.as_dict(),
            "hardware": _plain(dataclasses.asdict(self.hardware)),
            "launcher": self.launcher,
            "training": _plain(dataclasses.asdict(self.training)),
            "argv": list(self.argv),
            "env": [dataclasses.asdict(variable) for variable in self.env],
            "removed": [dataclasses.asdict(removal) for removal in self.removed],
            "job_name": self.job_name,
            "log_path": str(self.log_path),
            "warnings": list(self.warnings),
        }


def build_plan(env: Environment, hardware: Hardware, request: Request) -> LaunchPlan:
    """Decide the launch of this node from values alone.

    Raises TopologyError, InputError or UsageError for whatever can be known to fail before it starts.
    """
    launchers.check(request)
    gpus = len(hardware.gpus.devices)
    topology = detect(env, request.overrides, gpu_count=gpus or None)
    nproc, source = launchers.processes_per_node(request, topology, hardware)
    topology = dataclasses.replace(
        topology, nproc_per_node=nproc, sources={**topology.sources, "nproc_per_node": source}
    )
    world_size = topology.nnodes * nproc
    training = choose_training(
        request, gpus=world_size if gpus else 0, nnodes=topology.nnodes, world_size=world_size
    )
    job = _file_name(request.job_name or topology.job_id or "job")
    logs = (request.log_dir or request.default_log_dir).resolve()
    translated, translation_warnings = found_variables.translate(env)
    start = launchers.start(request, env, topology, hardware, training)
    chosen = [
        *start.env,
        *translated,
        *processes.process_variables(env, hardware, nproc, request.temporary),
        *nccl.nccl_variables(env, topology, hardware, str(logs / f"flight_{job}_{request.started}_rank")),
    ]
    return LaunchPlan(
        topology=topology,
        hardware=hardware,
        training=training,
        launcher=request.launcher,
        packages=start.packages,
        argv=start.argv,
        env=_first_of_each_name([v for v in chosen if launchers.reads(request, v.name)]),
        removed=tuple(processes.removals(env, keep={variable.name for variable in start.env})),
        job_name=job,
        log_path=logs / f"train_{job}_node{topology.node_rank}_{request.started}.log",
        warnings=(
            *topology.warnings,
            *hardware.warnings,
            *launchers.unused_gpus(request, nproc, hardware),
            *translation_warnings,
            *found_variables.warn(env, topology, hardware),
            *training.warnings,
        ),
    )


def _first_of_each_name(variables: list[EnvVar]) -> tuple[EnvVar, ...]:
    """Keep the first choice of each name: what the user meant comes before our own default."""
    return tuple({variable.name: variable for variable in reversed(variables)}.values())[::-1]


def _file_name(text: str) -> str:
    """Make a job's name safe as a part of a file name."""
    return re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).strip("-.")[:80] or "job"


def _plain(value: object) -> object:
    """Turn the paths inside a dataclass's dict into text, for JSON."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
