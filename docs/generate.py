"""Write the reference pages that are drawn from the code: ``python docs/generate.py``. A test keeps them current."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import click  # noqa: E402

from platform_launch.cli.launch_options import grouped  # noqa: E402
from platform_launch.cli.run import command as run_command  # noqa: E402
from platform_launch.environment import Environment  # noqa: E402
from platform_launch.hardware import Gpu, Gpus, Hardware, HcaPort, Host, Interface  # noqa: E402
from platform_launch.hardware.vendors import VENDORS  # noqa: E402
from platform_launch.launch.training_command import RESTART_COUNT  # noqa: E402
from platform_launch.observe import BIND_VARIABLE, FOLDER_VARIABLE, SNAPSHOT_VARIABLE  # noqa: E402
from platform_launch.plan import known_variables as known  # noqa: E402
from platform_launch.plan import launchers  # noqa: E402
from platform_launch.plan.accumulation import OF_ANY_SCRIPT  # noqa: E402
from platform_launch.plan.nccl import nccl_variables  # noqa: E402
from platform_launch.plan.processes import NODE_LEVEL, process_variables  # noqa: E402
from platform_launch.plan.program import Program  # noqa: E402
from platform_launch.plan.request import LAUNCHERS, Form, Request  # noqa: E402
from platform_launch.plan.training import Training  # noqa: E402
from platform_launch.platforms import PLATFORMS, Dialect  # noqa: E402
from platform_launch.supervise.guarding import VARIABLE as TREE_VARIABLE  # noqa: E402
from platform_launch.topology import Topology  # noqa: E402
from platform_launch.why.answer.retry import retry_of  # noqa: E402
from platform_launch.why.messages.signatures import Signature, SignatureRole, catalogue  # noqa: E402
from tests.why import corpus as why_corpus  # noqa: E402

VECTORS = tuple(ROOT / "tests" / "platforms" / name for name in ("vectors.json", "more_vectors.json"))
REFERENCE = ROOT / "docs" / "reference"


class _Traced(Environment):
    """An environment that remembers which names were asked for."""

    def __init__(self, variables: dict[str, str]) -> None:
        super().__init__(variables, root=Path("/nonexistent"), hostname="host", address="10.0.0.2")
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)


def platforms_page() -> str:
    """Return the table of dialects, in the order in which they are tried."""
    lines = [
        "# Platforms",
        "",
        "The platforms whose variables this launcher reads. They are tried in this order, and the first one that is",
        "recognised is used. Flags override all of them. `platform-launch platforms` prints this list;",
        "`platform-launch topology` shows what was read on this node, and from where. This page is written by",
        "`python docs/generate.py`.",
        "",
        "*Evidence* A: from the platform's source code or its vendor's documentation; B: only from its public users.",
        "The *four bare names* are MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK.",
        "",
        "| name | platform | evidence | recognised by | reads | reason for this position |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{dialect.name}` | {dialect.title} | {dialect.grade} | {_code(dialect.recognised_by)} "
        f"| {_names(dialect)} | {dialect.place} |"
        for dialect in PLATFORMS
    ]
    return "\n".join(lines) + "\n"


def _names(dialect: Dialect) -> str:
    """Return the variables a dialect asks for, found by reading its test vectors."""
    asked: set[str] = set()
    for environment in _vectors(dialect.name):
        traced = _Traced(environment)
        dialect.read(traced)
        asked |= traced.asked
    return ", ".join(f"`{name}`" for name in sorted(asked))


def _vectors(name: str) -> Iterator[dict[str, str]]:
    for file in VECTORS:
        for vector in json.loads(file.read_text(encoding="utf-8"))["vectors"]:
            if vector["dialect"] == name:
                yield vector["env"]


def _code(text: str) -> str:
    return re.sub(r"\b([A-Z][A-Z0-9_*<>]{3,}\b\*?(=\S+)?)", r"`\1`", text).replace("|", "\\|")


def variables_page() -> str:
    """Return the variables this launcher sets, removes, translates and warns of."""
    sections = [
        "# Variables",
        "",
        "The variables that `start_multinode_platform.sh` and `platform-launch run` read, export, remove and warn about.",
        "Nothing that the platform or you set is ever overwritten; `--print-env` shows what applies to a node, with",
        "reasons. The variables of each platform are in [platforms.md](platforms.md). This page is written by",
        "`python docs/generate.py`.",
        "",
        "## Read by the entrypoint and the launcher",
        "",
        "| variable | meaning |",
        "|---|---|",
        *(f"| `{name}` | {meaning} |" for name, meaning in READ.items()),
        "",
        "## Exported to the job, unless already set",
        "",
        "The values are examples from one node of a job with 2 nodes of 8 H100 and InfiniBand. `DS_ACCELERATOR` and",
        "`ACCELERATE_USE_CPU` are set on machines without GPUs, `NCCL_IB_DISABLE` on GB200.",
        "",
        "| variable | value | why |",
        "|---|---|---|",
        *(f"| `{name}` | `{value}` | {reason} |" for name, value, reason in _exported()),
        "",
        f"`{RESTART_COUNT}` counts the restarts (`--max-restarts`) of a job on several nodes. It is 0 in the first run.",
        "",
        f"`{OF_ANY_SCRIPT}`, if you set it to your script's steps of gradient accumulation,",
        "is raised when a job continues with [fewer nodes](../how-to/spare-nodes.md#continue-with-fewer-nodes)",
        "(`--min-nodes`). So is `ACCELERATE_GRADIENT_ACCUMULATION_STEPS`.",
        "",
        f"`{FOLDER_VARIABLE}` names a private folder, and `PYTHONPATH` starts with a hook. Through them the launcher asks",
        "each process what it is doing: see [a job that hangs](../how-to/hangs.md). `--no-observe` removes both.",
        "The same hook lets ranks save when their node is asked to stop. It uses `PLATFORM_LAUNCH_HOLD` (only under torchrun",
        "and accelerate) and `PLATFORM_LAUNCH_BELOW` (the rank that a process belongs to). Only [`drill`](../how-to/drill.md)",
        "sets `PLATFORM_LAUNCH_DRILL`, the folder in which ranks register.",
        "",
        f"`{SNAPSHOT_VARIABLE}` (`--memory-snapshot`) is the beginning of the name of the file that a rank writes if it runs",
        "out of GPU memory.",
        "",
        f"`{BIND_VARIABLE}` lists the CPUs of each local rank (`--bind`). The hook binds the rank to them and removes the",
        "variable from its environment.",
        "",
        f"`{TREE_VARIABLE}` marks every process of a run, so that all of them can be stopped if the launcher is killed.",
        "",
        "## Removed from the job's environment",
        "",
        f"{', '.join(f'`{name}`' for name in NODE_LEVEL)}: they count nodes here, and torchrun sets them for each",
        "worker. `PET_*`: they would become defaults of torchrun, also inside accelerate; `PET_SIGNALS_TO_HANDLE` stays.",
        "A command (`-- COMMAND`) keeps all of them, because it may be a script that reads the platform's own variables.",
        "",
        "## Warned about",
        "",
        "| variable | what the warning states |",
        "|---|---|",
        *(f"| `{name}` | {text} |" for name, text in _warned()),
        "",
        "## Variables of dist-launch",
        "",
        "| variable | flag | meaning |",
        "|---|---|---|",
        *(f"| `{name}` | {flag} | {meaning} |" for name, flag, meaning in DIST_LAUNCH),
    ]
    return "\n".join(sections) + "\n"


READ = {
    "PLATFORM_LAUNCH_CONDA_ENV": "name of the conda environment to activate",
    "PLATFORM_LAUNCH_CONDA_ROOT": "folder that holds conda's `etc/profile.d/conda.sh`",
    "PLATFORM_LAUNCH_VENV": "folder of the virtual environment to use",
    "PLATFORM_LAUNCH_NETWORK": "the switches above this node, outermost first, e.g. `block1/rack2`; not needed for Slurm (`SLURM_TOPOLOGY_ADDR`) and NVLink domains",
    "PLATFORM_LAUNCH_LANG": "`zh` or `en`: the language of all messages (`--lang`; default: LC_ALL, LC_MESSAGES or LANG)",
    "PLATFORM_LAUNCH_EXPLAIN_URL": "server with OpenAI's chat API for `why --explain`, e.g. `http://gpu-1:8000/v1`",
    "PLATFORM_LAUNCH_EXPLAIN_MODEL": "the model to use on that server",
    "PLATFORM_LAUNCH_EXPLAIN_KEY": "API key for that server, if it needs one",
    "PLATFORM_LAUNCH_VERBOSE": "if set, the screen shows everything that the log has, as with `--verbose`",
    "PLATFORM_LAUNCH_FROM_FILE": "set by the entrypoint: the names of the variables that it read from the settings file",
    "PLATFORM_LAUNCH_FROM_SIMULATE": "set by `simulate`: the names of the variables it chose for its nodes",
    "PLATFORM_LAUNCH_ENV_FILE": "settings file to read instead of `configs/platform.env`",
    "PLATFORM_LAUNCH_EXAMPLE": "example (`--example`) to run if the entrypoint or `run` gets no arguments",
    "VIRTUAL_ENV, CONDA_PREFIX, CONDA_DEFAULT_ENV, CONDA_EXE": "the environment that is already active",
    "CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES": "which GPUs count",
    "INIT_MASTER_PORT": "port on node 0 where the nodes connect (default: one of three ports computed from MASTER_PORT)",
    "PLATFORM_LAUNCH_EXIT_FILE": 'set for the job: the file to which it may write `{"exit_code": N, "reason": "…"}` when it fails',
    "PLATFORM_LAUNCH_QUARANTINE": "file that lists nodes to exclude (`--quarantine`)",
    "PLATFORM_LAUNCH_NODE_NAME": "the scheduler's name of this machine (default: SLURMD_NODENAME, else the host name)",
    "PLATFORM_LAUNCH_SECRET": "secret that all nodes share: they accept only each other",
    "PLATFORM_LAUNCH_SECRET_FILE": "private file that contains this secret",
}

DIST_LAUNCH = (
    (
        "CLUSTER_INFO_FILE",
        "",
        "file with the list of nodes; keys are in the folder next to it (default `/tmp/cluster_info.json`)",
    ),
    (
        "INIT_MASTER_PORT",
        "",
        "as above, for `wait`, which keeps the port; a launcher in a job uses the next free one",
    ),
    ("SSH_PORT", "`--ssh-port`", "port of the SSH servers (default 2025)"),
    ("SSH_USER", "`--ssh-user`", "user that logs in (default: the user that runs `wait`)"),
    (
        "SSH_KEY, SSH_PUBLIC_KEY",
        "`--ssh-key`",
        "rank 0's key (default: a new pair); on the other nodes `SSH_PUBLIC_KEY` names the only key that may log in",
    ),
    ("DIST_LAUNCH_JOB", "", "set for every process of a job; `kill` finds them by it"),
)


def _exported() -> list[tuple[str, str, str]]:
    env = Environment({}, hostname="host")
    topology = Topology("example", 2, 0, "10.0.0.1", 29500, nproc_per_node=1)
    programs = {
        form: Training(Program(form, "train"), None, None, "") for form in (Form.SCRIPT, Form.COMMAND)
    }
    found: dict[str, tuple[str, str, str]] = {}
    for hardware in (_machine("NVIDIA H100 80GB HBM3", 8), _machine("", 0), _machine("NVIDIA GB200", 4)):
        nproc = max(1, len(hardware.gpus.devices))
        for variable in (
            *process_variables(env, hardware, nproc, "/tmp/platform_launch_0"),  # noqa: S108 - an example
            *nccl_variables(env, topology, hardware, "logs/flight_job_time_rank"),
        ):
            value = re.sub(r"(torch_extensions)_\w+", r"\1_…", variable.value)
            found.setdefault(variable.name, (variable.name, value, variable.reason))
        for launcher in (*LAUNCHERS[1:], None):  # accelerate's are torchrun's; None: a command
            request = Request(
                Path(), "python3", "", "", Path(), launcher=launcher, arguments=() if launcher else ("train",)
            )
            training = programs[Form.SCRIPT if launcher else Form.COMMAND]
            for variable in launchers.start(request, env, topology, hardware, training).env:
                only = "" if launcher == "torchrun" else f" (`--launcher {launcher}`)"
                only = only if launcher else " (`-- COMMAND`)"
                found.setdefault(variable.name, (variable.name, variable.value, variable.reason + only))
    return list(found.values())


def _machine(name: str, gpus: int) -> Hardware:
    devices = tuple(Gpu(index, name, 80.0, "") for index in range(gpus))
    ports = tuple(HcaPort(f"mlx5_{index}", 1, True, "InfiniBand", 400.0) for index in range(gpus))
    return Hardware(
        Gpus(devices, source="NVML"),
        (Interface("eth0", ("10.0.0.1",)),),
        ports,
        Host("host", 96, 1024, 64, None),
        "eth0",
    )


def _warned() -> list[tuple[str, str]]:
    timeouts = "nothing reads it: translated to `DEEPSPEED_TIMEOUT` and `TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC`"
    return [
        *((name, timeouts) for name in known.FAKE_TIMEOUTS),
        *((name, f"renamed `{new}` in torch 2.2: carried over") for name, new in known.RENAMED.items()),
        *((name, f"deprecated: use `{new}`") for name, new in known.DEPRECATED.items()),
        *((name, f"not read any more: {reason}") for name, reason in known.DEAD.items()),
        *((name, f"for debugging only: {reason}; passed on") for name, reason in known.DEBUG_ONLY.items()),
        ("NCCL_… of any other name", "not in NCCL's documentation; the most similar name that is"),
    ]


def accelerators_page() -> str:
    """Return the table of vendors."""
    lines = [
        "# Accelerators",
        "",
        "The vendors whose accelerators are recognised, with the variables and device nodes that the launcher uses. The",
        "[how-to](../how-to/accelerators.md) explains how to start a job on them. This page is written by",
        "`python docs/generate.py`.",
        "",
        "*Grade*: *measured* means run against the driver or a library that imitates it; *documented* means taken from the",
        "vendor's documentation or source; *reported* means taken only from its public users. *Processes*: *counted* means",
        "that one process is started per device; `--nproc-per-node` means that the launcher does not count the devices.",
        "",
        "| vendor | grade | processes | chosen by | granted by | device nodes | collectives | DeepSpeed | JAX | source |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {vendor.title} | {vendor.grade} | {'counted' if vendor.counted else '`--nproc-per-node`'} "
        f"| {', then '.join(_listed(stage, ' or ') for stage in vendor.visible)} "
        f"| {_listed((*vendor.granted, *vendor.marks))} | {_listed(f'/dev/{node}' for node in (*vendor.nodes, vendor.shared) if node)} "
        f"| {vendor.collectives} | {vendor.deepspeed} | {vendor.jax} | {vendor.source} |"
        for vendor in VENDORS
    ]
    return "\n".join(lines) + "\n"


def options_page() -> str:
    """Return the page of what `run` takes, from the command itself."""
    lines = [
        "# Options of `run`",
        "",
        "Options come before `--`; arguments after `--` go to the script or module, or are the command itself.",
        "`platform-launch job`, `simulate` and `init` accept most of these options, too. For `dist-launch`, `procguard` and",
        "the other commands, see their `--help`.",
    ]
    context = click.Context(run_command, info_name="run")
    # Without --help, whose names click keeps from its first use.
    for title, params in grouped(run_command.params).items():
        records = [record for param in params if (record := param.get_help_record(context)) is not None]
        if records:
            lines += ["", f"## {title}", "", "| option | meaning |", "|---|---|"]
        for record in records:
            names, meaning = (" ".join(text.split()).replace("|", "\\|") for text in record)
            lines.append(f"| `{names}` | {meaning} |")
    return "\n".join(lines) + "\n"


def _listed(names: Iterable[str], between: str = ", ") -> str:
    return between.join(f"`{name}`" for name in names)


def _retry(signature: Signature) -> str:
    known = retry_of(signature.id)
    return known.answer.replace("_", " ").replace("unknown", "") if known is not None else ""


def why_page() -> str:
    """Return the page about `why`, whose table of signatures, at its end, is drawn anew."""
    page = (REFERENCE / "why.md").read_text(encoding="utf-8")
    head = "| id | role | what happened | retry | source |\n|---|---|---|---|---|\n"
    told = (signature for signature in catalogue().signatures if signature.role is not SignatureRole.NOISE)
    rows = (f"| `{s.id}` | {s.role.value} | {s.title} | {_retry(s)} | {s.source} |\n" for s in told)
    return page.partition(head)[0] + head + "".join(rows)


PAGES = {
    REFERENCE / "options.md": options_page,
    REFERENCE / "accelerators.md": accelerators_page,
    REFERENCE / "platforms.md": platforms_page,
    REFERENCE / "variables.md": variables_page,
    REFERENCE / "why.md": why_page,
    REFERENCE / "why-corpus.md": why_corpus.page,
}


if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
