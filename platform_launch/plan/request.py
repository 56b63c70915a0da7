"""The user's request."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from pathlib import Path

from platform_launch.topology import Overrides
from platform_launch.values import dataclass

# The recipe that fits the number of GPUs.
AUTO = "auto"
LAUNCHERS = ("accelerate", "torchrun", "jax", "python")
# A command is started by the supervisor alone.
COMMAND = "command"

# Signals for ranks whose node will be reclaimed. They need not stop anything.
NO_NOTICE = "none"
NOTICE_SIGNALS = ("SIGUSR1", "SIGUSR2", NO_NOTICE)

# Ranks as the platform gave them, or so that nodes below one switch follow each other.
BY_NETWORK = "topology"
RANK_ORDERS = ("platform", BY_NETWORK)


class Form(str, Enum):
    """The kinds of program that a job can run."""

    SCRIPT = "script"
    MODULE = "module"
    COMMAND = "command"
    EXAMPLE = "example"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Example:
    """A training that comes with this project: its script below the root, and its launcher.

    ``extra`` is the extra of the package that installs what it needs, ``imports`` what it imports beyond what
    the launcher needs.
    """

    script: str
    launcher: str
    extra: str = ""
    imports: tuple[str, ...] = ()


EXAMPLES = {
    "taehv": Example(
        "examples/taehv/train.py", "accelerate", "train", ("av", "numpy", "PIL", "pytorch_msssim")
    ),
    "ddp": Example("examples/ddp/train.py", "torchrun"),
    "jax": Example("examples/jax/train.py", "jax", "jax", ("numpy",)),
}


@dataclass(frozen=True)
class Request:
    """The flags of one launch. None means "choose for me".

    ``root`` is the project's root, ``python`` the interpreter that runs the job, ``temporary`` a folder on a
    local disk (``temporary_problem`` is why it must not be used, empty if it may), ``started`` a time stamp
    in the names of the launch's files, ``default_log_dir`` where logs go without ``log_dir``. ``arguments``
    are the words after ``--``: the arguments of ``script``, ``module`` or ``example`` (one of
    :data:`EXAMPLES`), and a command if none of these is given. ``examines_only``: nothing needs to be named,
    because nothing starts. ``recipe`` names one of configs/recipes.yaml, or is :data:`AUTO`.
    ``observe_folder`` is where the job's processes can be queried, None for --no-observe.
    ``memory_snapshot``: a rank that runs out of GPU memory writes its allocations. ``bind`` is one of
    binding.MODES: which CPUs each rank may use. ``launcher`` is one of :data:`LAUNCHERS`; ``grace_s`` the
    time from SIGTERM to SIGKILL; ``log_limit_gib`` how large the log may become, 0 without a limit.
    """

    root: Path
    python: str
    temporary: str
    started: str
    default_log_dir: Path
    temporary_problem: str = ""
    observe_folder: str | None = None
    memory_snapshot: bool = False
    overrides: Overrides = field(default_factory=Overrides)
    script: Path | None = None
    module: str | None = None
    example: str | None = None
    arguments: tuple[str, ...] = ()
    examines_only: bool = False
    config: Path | None = None
    deepspeed_config: Path | None = None
    recipe: str | None = None
    strict: bool = False
    launcher: str | None = None
    jax_per_gpu: bool = False
    bind: str = "auto"
    grace_s: float | None = None
    job_name: str | None = None
    log_dir: Path | None = None
    log_limit_gib: float = 4.0

    @property
    def form(self) -> Form:
        """The form of what to run: script, module, example or command."""
        if self.script is not None:
            return Form.SCRIPT
        if self.module is not None:
            return Form.MODULE
        if self.example is not None:
            return Form.EXAMPLE
        return Form.COMMAND if self.arguments else Form.NOTHING

    @property
    def started_by(self) -> str:
        """Who starts the processes of a node: one of :data:`LAUNCHERS`, or :data:`COMMAND`."""
        if self.form is Form.COMMAND:
            return COMMAND
        return self.launcher or (EXAMPLES[self.example].launcher if self.example else LAUNCHERS[0])


@dataclass(frozen=True)
class RunOptions:
    """The options for the rendezvous and the monitoring of a run.

    ``on_hang`` is the action after ``hang_after_s`` without progress (0: hangs are not detected).
    ``health_interval_s`` is the interval between health checks of GPUs and ports (0: only after a failure).
    ``quarantine`` is the file of nodes that must not be used. ``metrics`` is where Prometheus metrics are
    served: an address of this node and a port (0: a free one). ``no_trainjob_status`` leaves the status of a
    Kubeflow TrainJob to the training. ``notice_signal`` is one of :data:`NOTICE_SIGNALS`. ``verbose`` prints
    everything that is logged. ``rank_order`` is one of :data:`RANK_ORDERS`; node 0's applies.
    """

    no_roll_call: bool
    roll_call_timeout_s: float
    node_timeout_s: float
    max_restarts: int
    on_hang: str
    hang_after_s: float
    health_interval_s: float
    quarantine: Path | None
    metrics: tuple[str, int] | None
    no_trainjob_status: bool
    notice_signal: str = NOTICE_SIGNALS[0]
    verbose: bool = False
    rank_order: str = "platform"
