"""What a node brings to the roll call: who it is, and the facts in which nodes of a job should agree."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from platform_launch.confidential import masked_arguments
from platform_launch.platforms.switches import place_of
from platform_launch.rendezvous.messages import Message
from platform_launch.values import dataclass

if TYPE_CHECKING:  # saves processes that make no plan a fifth of their start
    from platform_launch.hardware import Hardware
    from platform_launch.plan.launch_plan import LaunchPlan
    from platform_launch.plan.program import Program

ARGUMENT = "argument "  # prefix of the facts that are arguments

# What training libraries read; other variables are private.
_COMPARED = ("NCCL_", "GLOO_", "TORCH_", "OMP_", "DEEPSPEED_", "DS_", "ACCELERATE_", "CUDA_", "UCX_", "FI_")
# Differ between nodes without meaning: paths with the node or the start time in them, chosen devices.
_OWN_TO_EACH_NODE = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "NCCL_DEBUG_FILE",
        "TORCH_FR_DUMP_TEMP_FILE",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "TORCH_EXTENSIONS_DIR",
    }
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|SIGNATURE|PRIVATE", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://[^/\s]*@|-----BEGIN|\bBearer\s", re.IGNORECASE)
_LONGEST_VALUE = 160
_MOST_ARGUMENTS = 100
_NEGATIVE = re.compile(r"-[\d.]")
_NUMBER = re.compile(r"[-+]?[\d._]+(e[-+]?\d+)?", re.IGNORECASE)
_DIGITS = re.compile(r"(\d+)")
_NODE = "\0"  # stands for a name of the node; no argument can contain it
_NAMES_A_NODE = re.compile(r"rank|node|host|machine|pod", re.IGNORECASE)


@dataclass(frozen=True)
class Fingerprint(Message):
    """One node as it presents itself. ``facts`` maps the name of a fact to its text in a table.

    ``paths`` are the files whose hashes are among the facts; they may differ between nodes. ``identity`` is
    random for each launcher, so that two nodes with one rank differ from one node that joins twice.
    ``wall_clock_s`` is the node's own clock when it joined. ``restarts_used`` counts the attempts of this run
    that have failed. ``master_port_problem`` is why this node does not reach MASTER_PORT, empty if it does.
    ``refusal`` is why it cannot start at all, with the exit code ``refusal_code``. ``stand_in``: it was a
    spare, and has the rank of a node that was lost. ``network`` are the switches above it
    (:data:`platforms.switches.Place`). ``job`` identifies the job (:func:`job_of`), ``program`` is the same
    without the arguments, and ``command`` is what it runs, for messages.
    """

    node_rank: int
    nnodes: int
    host: str
    addresses: tuple[str, ...]
    identity: str
    job_id: str | None
    gpus: int = 0
    facts: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)
    wall_clock_s: float = 0.0
    restarts_used: int = 0
    master_port_problem: str = ""
    refusal: str = ""
    refusal_code: int = 0
    stand_in: bool = False
    network: tuple[str, ...] = ()
    job: str = ""
    program: str = ""
    command: str = ""

    @property
    def place(self) -> str:
        """Where it runs, for messages."""
        return f"{self.host} ({self.addresses[0]})" if self.addresses else self.host

    def may_be_of_another_job(self, other: Fingerprint) -> bool:
        """Return whether two nodes run different things, arguments such as ``out/node0`` aside."""
        if not self.job or not other.job or self.job == other.job:
            return False
        return self.program != other.program or not all(
            self.agrees_in(name, other) for name in {**self.facts, **other.facts} if name.startswith(ARGUMENT)
        )

    def agrees_in(self, fact: str, other: Fingerprint) -> bool:
        """Return whether two nodes have the same fact. An argument may hold each node's own name or rank."""
        mine, theirs = self.facts.get(fact), other.facts.get(fact)
        if mine == theirs or mine is None or theirs is None or not fact.startswith(ARGUMENT):
            return mine == theirs
        if _NUMBER.fullmatch(mine) and _NUMBER.fullmatch(theirs):
            return False
        ranks = str(self.node_rank), str(other.node_rank)
        parts = [_DIGITS.split(node._without_names(text)) for node, text in ((self, mine), (other, theirs))]
        return len(parts[0]) == len(parts[1]) and all(
            a == b or (a, b) == ranks for a, b in zip(*parts, strict=True)
        )

    def _without_names(self, argument: str) -> str:
        """Return an argument without the host and the addresses of this node."""
        for name in (self.host, *self.addresses):
            argument = argument.replace(name, _NODE) if name else argument
        return argument


def fingerprint_of(
    plan: LaunchPlan,
    environment: Mapping[str, str],
    *,
    identity: str,
    versions: Mapping[str, str],
    git_revision: str | None,
    free_gib: float | None,
    user: str = "",
    directory: str = "",
) -> Fingerprint:
    """Return the fingerprint of this node's launch.

    ``environment`` contains the variables of the job's processes, ``versions`` those of its packages.
    ``free_gib`` is the free space for logs. ``user`` started the launcher in ``directory``. Reads the files
    that are launched, to hash them.
    """
    topology, hardware, training = plan.topology, plan.hardware, plan.training
    files = {
        "training config": training.config,
        "accelerate yaml": training.accelerate_yaml.path if training.accelerate_yaml else None,
        "script": training.program.source,
    }
    program = training.program
    program_arguments = arguments(program.arguments)
    addresses = tuple(address for interface in hardware.interfaces for address in interface.addresses)
    facts = {
        "nodes announced": str(topology.nnodes),
        "processes per node": str(topology.nproc_per_node),
        "world size": str(topology.world_size),
        "platform": topology.platform,
        "master port": str(topology.master_port),
        "launcher": plan.launcher,
        "program": program.name,
        **{name: hash_of(path) if path else "none" for name, path in files.items()},
        "git revision": git_revision or "none",
        **_hardware_facts(hardware),
        **{name: version for name, version in versions.items() if name != "platform-launch"},
        **{f"{ARGUMENT}{name}": value for name, value in program_arguments.items()},
        **{f"${name}": value for name, value in shareable(environment).items()},
    }
    if free_gib is not None and free_gib < 5:
        facts["free disk for logs"] = f"{free_gib:.1f} GiB"
    return Fingerprint(
        node_rank=topology.node_rank,
        nnodes=topology.nnodes,
        host=hardware.host.hostname,
        addresses=addresses,
        identity=identity,
        job_id=topology.job_id,
        gpus=len(hardware.gpus.devices),
        facts=facts,
        paths={name: str(path) for name, path in files.items() if path},
        network=place_of(environment, hardware.gpus.fabric),
        job=job_of(plan, user, directory, program_arguments),
        program=job_of(plan, user, directory, {}),
        command=_command(program, user, directory),
    )


def _command(program: Program, user: str, directory: str) -> str:
    words = (str(program.source or program.name), *masked_arguments(program.arguments))
    return f"{user}:{directory}$ {' '.join(words)}"[:_LONGEST_VALUE]


def job_of(plan: LaunchPlan, user: str, directory: str, program_arguments: Mapping[str, str]) -> str:
    """Return an identity that all nodes of a job share and other jobs on the same hosts hardly have.

    It is the name that the user gave the job; without one, who runs what, and where. Nodes of one job may
    differ in the latter, so a difference alone does not prove that they belong to different jobs.
    """
    program = plan.training.program
    parts = [plan.topology.job_id or "", plan.job_name]
    if not plan.is_named:
        parts += [
            user,
            directory,
            program.name,
            *(f"{name}={value}" for name, value in program_arguments.items()),
        ]
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:16]


def _hardware_facts(hardware: Hardware) -> dict[str, str]:
    devices = hardware.gpus.devices
    facts = {
        "GPUs": str(len(devices)),
        "GPU kind": _each_once(gpu.name for gpu in devices),
        "GPU memory": _each_once(f"{gpu.memory_gib:.0f} GiB" for gpu in devices if gpu.memory_gib),
        "GPU driver": hardware.gpus.driver or "none",
        "driver's CUDA": hardware.gpus.cuda or "none",
        "interfaces": _each_once(interface.name for interface in hardware.interfaces),
        "route to the master": hardware.route_interface or "unknown",
        "RDMA ports": _each_once(
            f"{port.device}:{port.port} {port.link_layer} {port.rate_gbps or '?'}Gb/s"
            f"{'' if port.active else ' down'}"
            for port in hardware.hca_ports
        ),
        "RoCE v2 GIDs": _each_once(
            f"{port.device}:{'/'.join(str(index) for index, kind in port.gids if kind == 'RoCE v2')}"
            for port in hardware.hca_ports
            if port.link_layer == "Ethernet"
        ),
    }
    if hardware.host.shm_gib is not None:
        facts["shared memory"] = f"{hardware.host.shm_gib:.0f} GiB"
    return facts


def _each_once(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts)) or "none"


def shareable(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that other nodes may see: those of training libraries, and never a secret."""
    return {
        name: value[:_LONGEST_VALUE]
        for name, value in sorted(environment.items())
        if name.startswith(_COMPARED)
        and name not in _OWN_TO_EACH_NODE
        and not _SECRET.search(name)
        and not _SECRET_VALUE.search(value)
    }


def arguments(words: Sequence[str]) -> dict[str, str]:
    """Return the arguments of a job as other nodes may see them, by option; others by their position.

    Secrets are masked, and options that name a rank or a node are left out, because they must differ.
    """
    found: dict[str, str] = {}
    option, place = "", 0
    for word in masked_arguments(words):
        name, equals, value = word.partition("=")
        if word.startswith("-") and not _NEGATIVE.match(word):
            option = "" if equals else name
            found[name] = value if equals else "given"
        elif option:
            found[option] = word if found[option] == "given" else f"{found[option]} {word}"
        else:
            place += 1
            found[str(place)] = word
    kept = {name: value for name, value in found.items() if not _NAMES_A_NODE.search(name)}
    return {name: value[:_LONGEST_VALUE] for name, value in islice(kept.items(), _MOST_ARGUMENTS)}


def hash_of(path: Path) -> str:
    """Return the start of a file's SHA-256, or why it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError as error:
        return error.strerror or "unreadable"
