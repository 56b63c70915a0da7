"""The launch plan: everything that will run. What is printed is what runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path

from platform_launch.environment import Environment
from platform_launch.hardware import AcceleratorReport, Hardware, HcaPort
from platform_launch.hardware.vendors import UNKNOWN
from platform_launch.plan import accumulation, binding, found_variables, launchers, nccl, processes, proxies
from platform_launch.plan.binding import Binding
from platform_launch.plan.network_order import RankOrder, order_of_job
from platform_launch.plan.observation import observation_variables
from platform_launch.plan.request import COMMAND, EXAMPLES, Request
from platform_launch.plan.training import Training, choose_training
from platform_launch.plan.variables import EnvVar, Removal
from platform_launch.plan.warning import PlanWarning
from platform_launch.platforms import detect, doubt_count
from platform_launch.text import Phrase
from platform_launch.topology import Topology
from platform_launch.values import dataclass


@dataclass(frozen=True)
class LaunchPlan:
    """One node's launch. Frozen: rendering and running only read it.

    ``env`` is what this launcher adds to the environment, ``removed`` what it removes, and ``kept`` the
    communication variables that were set outside and are not changed; the child gets
    :meth:`child_environment`. ``log_path`` is the log of the output. ``launcher`` names what starts the
    node's processes, ``python`` the interpreter that runs them unless they are a command, ``packages`` the
    modules that it needs, ``extra`` the extra of this project that installs them for an example. ``binding``
    is which CPUs each rank may use, ``rank_order`` how the ranks follow the network, None if this node does
    not know the whole network. ``is_named``: the user chose ``job_name``. ``batch_note`` is what happens to
    the global batch without the missing nodes, empty if none is missing.
    """

    topology: Topology
    hardware: Hardware
    training: Training
    launcher: str
    python: str
    packages: tuple[str, ...]
    argv: tuple[str, ...]
    env: tuple[EnvVar, ...]
    removed: tuple[Removal, ...]
    kept: tuple[EnvVar, ...]
    job_name: str
    log_path: Path
    warnings: tuple[PlanWarning, ...] = ()
    extra: str = ""
    binding: Binding = field(default_factory=Binding)
    is_named: bool = False
    rank_order: RankOrder | None = None
    batch_note: str = ""

    def child_environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the full environment of the job's processes."""
        gone = {removal.name for removal in self.removed}
        kept = {name: value for name, value in inherited.items() if name not in gone}
        return kept | {variable.name: variable.value for variable in self.env}

    def ports_in_use(self, inherited: Mapping[str, str]) -> list[HcaPort]:
        """Return the RDMA ports that this job uses between nodes: NCCL's, so only with GPUs."""
        vendor = self.hardware.accelerator.vendor
        if self.topology.nnodes == 1 or vendor is None or not vendor.reads_nccl:
            return []
        return nccl.ports_in_use(self.child_environment(inherited), self.hardware.hca_ports)

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form of ``--print-env --format json`` and of the launch record."""
        return {
            "topology": self.topology.as_dict(),
            "accelerator": self.hardware.accelerator.as_dict(),
            "hardware": _plain(dataclasses.asdict(self.hardware)),
            "launcher": self.launcher,
            "binding": self.binding.as_dict(),
            "rank_order": self.rank_order.as_dict() if self.rank_order else None,
            "training": _plain(dataclasses.asdict(self.training)),
            "argv": list(self.argv),
            "env": [dataclasses.asdict(variable) for variable in self.env],
            "removed": [dataclasses.asdict(removal) for removal in self.removed],
            "kept": [dataclasses.asdict(variable) for variable in self.kept],
            "job_name": self.job_name,
            "log_path": str(self.log_path),
            "warnings": [dataclasses.asdict(warning) for warning in self.warnings],
        }


def build_plan(
    env: Environment, hardware: Hardware, request: Request, topology: Topology | None = None
) -> LaunchPlan:
    """Decide the launch of this node from values alone.

    ``topology`` is the result of :func:`detect` for ``env`` and the request, if the caller has it already.
    Raises TopologyError, InputError or UsageError for anything that is known to fail.
    """
    launchers.check(request)
    gpus = len(hardware.gpus.devices)
    topology = doubt_count(topology or detect(env, request.overrides), gpus)
    hardware = _with_allocated(hardware, topology)
    nproc, source = launchers.processes_per_node(request, env, topology, hardware)
    topology = dataclasses.replace(
        topology, nproc_per_node=nproc, sources={**topology.sources, "nproc_per_node": source}
    )
    if topology.nnodes == 1 and not topology.port_was_chosen:
        topology = _with_free_port(topology, hardware)
    training = choose_training(request, env, topology, nproc=nproc, with_gpus=bool(gpus))
    of_variables = accumulation.variables(env, topology) if topology.least < topology.launched else {}
    kept = training.accumulation or next(iter(of_variables.values()), None)
    job = _file_name(request.job_name or topology.job_id or "job")
    logs = (request.log_dir or request.default_log_dir).resolve()
    translated, translation_warnings = found_variables.translate(env)
    start = launchers.start(request, env, topology, hardware, training)
    example = EXAMPLES[request.example] if request.example else None
    bound = binding.bind(
        request.bind, env, hardware, nproc, ranks_known=launchers.ranks_known(request, training, nproc)
    )
    chosen = [
        *start.env,
        *(of_variables if topology.missing else ()),
        *translated,
        *processes.process_variables(
            env, hardware, nproc, None if request.temporary_problem else request.temporary, bound.share
        ),
        *bound.variables(),
        *proxies.proxy_variables(env, topology),
        *observation_variables(
            env,
            request.observe_folder,
            binds=bool(bound.ranks),
            snapshots=str(logs / f"memory_{job}_{request.started}_rank") if request.memory_snapshot else "",
        ),
        *nccl.nccl_variables(env, topology, hardware, str(logs / f"flight_{job}_{request.started}_rank")),
    ]
    added = _first_of_each_name([v for v in chosen if launchers.reads(request, v.name)])
    # A command may be a script that reads the platform's own variables, which count nodes.
    removed = (
        []
        if request.started_by == COMMAND
        else processes.removals(env, keep={variable.name for variable in start.env})
    )
    changed = {*(variable.name for variable in added), *(removal.name for removal in removed)}
    return LaunchPlan(
        topology=topology,
        hardware=hardware,
        training=training,
        launcher=request.started_by,
        binding=bound,
        python=request.python,
        packages=(*start.packages, *(example.imports if example else ())),
        extra=example.extra if example else "",
        argv=start.argv,
        env=added,
        removed=tuple(removed),
        kept=tuple(variable for variable in found_variables.set_outside(env) if variable.name not in changed),
        job_name=job,
        is_named=bool(request.job_name),
        rank_order=order_of_job(env, topology),
        batch_note=accumulation.batch_note(kept, topology) if topology.missing else "",
        log_path=logs / f"train_{job}_node{topology.node_rank}_{request.started}.log",
        warnings=(
            *_called("platform-reading", f"platform {topology.platform}", topology.warnings),
            *_called("gpu", hardware.gpus.source, hardware.gpus.warnings),
            *_called("rdma-no-device", "/dev/infiniband", hardware.warnings),
            *_called("gpu-unused", source, launchers.unused_gpus(request, nproc, hardware)),
            *translation_warnings,
            *found_variables.warn(env, topology, hardware),
            *_called("training-setting", training.rule, training.warnings),
            *_called("training-setting", "--min-nodes", accumulation.warnings(kept, topology)),
            *_called("temporary-not-private", request.temporary, _shared_temporary(env, request)),
            *_called("home-not-writable", "HOME", _home(hardware, added)),
        ),
    )


def _with_allocated(hardware: Hardware, topology: Topology) -> Hardware:
    """Add the platform's count to the reports of accelerators."""
    if not topology.accelerators or hardware.assumed:
        return hardware
    source = f"{topology.sources['accelerators']}={topology.accelerators}"
    report = AcceleratorReport(UNKNOWN.key, topology.accelerators, source)
    return dataclasses.replace(hardware, reports=(*hardware.reports, report))


def _with_free_port(topology: Topology, hardware: Hardware) -> Topology:
    """Use a free port on a single node: no other node needs it, and two jobs may share the machine."""
    if hardware.free_port is None:
        return topology
    sources = {**topology.sources, "master_port": Phrase("a free port: there is only one node")}
    return dataclasses.replace(topology, master_port=hardware.free_port, sources=sources)


def _called(warning_id: str, origin: str, texts: Iterable[str]) -> list[PlanWarning]:
    return [PlanWarning(warning_id, origin, text) for text in texts]


def _shared_temporary(env: Environment, request: Request) -> list[str]:
    """Warn that compiled code is not kept in a folder that another user may have created."""
    if not request.temporary_problem or "TORCH_EXTENSIONS_DIR" in env:
        return []
    text = Phrase(
        "{folder} is not a folder of this user alone ({problem}): compiled extensions go to "
        "torch's own folder in the home; remove it, or set TMPDIR or TORCH_EXTENSIONS_DIR",
        folder=request.temporary,
        problem=request.temporary_problem,
    )
    return [text]


def _home(hardware: Hardware, added: tuple[EnvVar, ...]) -> list[str]:
    """Warn that libraries cannot keep their caches in the user's home, and where they go instead."""
    if not hardware.host.home_problem:
        return []
    folders = [variable.value for variable in added if variable.name == "XDG_CACHE_HOME"]
    problem = hardware.host.home_problem
    if not folders:
        return [Phrase("{problem}: caches cannot be kept there; set HOME to another folder", problem=problem)]
    text = "{problem}: caches go to {folder}, and are lost with it; set HOME to another folder to keep them"
    return [Phrase(text, problem=problem, folder=folders[0])]


def _first_of_each_name(variables: list[EnvVar]) -> tuple[EnvVar, ...]:
    """Keep the first value of each name: the user's choice comes before our own default."""
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
