"""What runs on one node, with which rank, and what its monitors need to know.

The private folder in which its processes can be queried belongs to the launch, and is removed by later
launches if that was killed. A launch holds a lock of its folder, which the kernel releases whatever ended it:
unlike a process id, a lock means the same in all containers that share a folder for temporary files, and is
never given to another.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING

from platform_launch import files
from platform_launch.environment import Environment
from platform_launch.errors import InputError
from platform_launch.hardware import Gpu, HcaPort
from platform_launch.launch.exit_code import ExitFile
from platform_launch.observe import FOLDER_VARIABLE
from platform_launch.observe.notices import MetadataService, Source, sources
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.plan.request import NO_NOTICE, Request, RunOptions
from platform_launch.supervise import DEFAULT_GRACE_S, Command
from platform_launch.topology import node_prefix
from platform_launch.values import dataclass

if TYPE_CHECKING:
    from platform_launch.observe.memory import MemoryHeld

_GIB = 2**30
# The processes read the number of restarts from this variable.
RESTART_COUNT = "PLATFORM_LAUNCH_RESTART_COUNT"

# The actions for a hang.
REPORT, STOP, RESTART = "report", "stop", "restart"

# Names made by ``cli/launch_options.py``: the time of the start, and the process id.
_NAME = re.compile(r"observe-\d{8}-\d{6}-\d+")
_PURPOSE = "the training's processes will answer questions there"
# Other launches remove the folder a few times at most; where it can never be created, such as below /proc, a
# file system answers the same.
_MOST_TRIES = 100

_locked: dict[Path, int] = {}


@dataclass(frozen=True)
class NodePlace:
    """A place in the job: the rank of a node, the address of node 0, and how many nodes take part.

    Node 0 may have moved, and the job may continue with fewer nodes.
    """

    node_rank: int
    master_addr: str
    nnodes: int


@dataclass(frozen=True)
class HangOptions:
    """What the hang monitor of this node needs to know.

    ``folder`` is the private folder that the hook writes to. ``after_s`` 0: hangs are not detected, but
    ``inspect`` is answered. ``memory()`` is the peak memory of the processes so far.
    """

    folder: Path
    node_rank: int
    world_size: int
    host: str
    log: Path
    on_hang: str = REPORT
    after_s: float = 300.0
    gpus: dict[int, str] = field(default_factory=dict)
    memory: Callable[[], MemoryHeld] | None = None


@dataclass(frozen=True)
class HealthOptions:
    """The devices that a job uses on a node, and how often they are checked; 0: only after a failure."""

    interval_s: float
    node_rank: int
    host: str
    gpus: tuple[Gpu, ...] = ()
    ports: tuple[HcaPort, ...] = ()
    sys_root: Path = Path("/sys")

    @property
    def has_devices(self) -> bool:
        """Whether there are devices to check."""
        return bool(self.gpus or self.ports)


@dataclass(frozen=True)
class TrainingCommand:
    """What a supervisor needs to run the processes of an attempt.

    ``is_agent``: it starts the ranks, and can be held. ``notices`` are the sources of notices that this node
    will be taken away; the ranks then get ``notice_signal``, None for no signal. ``batch_note`` is what
    happens to the global batch if fewer nodes take part than were launched. ``packages`` and what the
    ``script`` imports are what the processes load first.
    """

    command: Command
    log_path: Path
    prefix: str
    grace_s: float
    exit_file: ExitFile
    hangs: HangOptions | None = None
    health: HealthOptions = HealthOptions(0.0, 0, "")
    log_limit_bytes: int = 0
    is_agent: bool = False
    nnodes: int = 1
    batch_note: str = ""
    packages: tuple[str, ...] = ()
    script: Path | None = None
    notices: tuple[Source, ...] = ()
    notice_signal: Signals | None = None

    @property
    def temporary(self) -> list[Path]:
        """The folders that end with the launch."""
        folders = (self.exit_file.folder, self.hangs.folder if self.hangs is not None else None)
        return [folder for folder in folders if folder is not None]

    def for_restart(self, restarts: int) -> TrainingCommand:
        """Return the command of a restart, with the number of earlier starts in its environment."""
        env = {**self.command.env, RESTART_COUNT: str(restarts)}
        return replace(self, command=replace(self.command, env=env))


def training_command(
    plan: LaunchPlan,
    env: Environment,
    request: Request,
    options: RunOptions,
    reported: ExitFile,
    memory: Callable[[], MemoryHeld],
) -> TrainingCommand:
    """Return what a plan runs; ``memory()`` is the peak memory of its processes so far."""
    notice_signal = Signals[options.notice_signal] if options.notice_signal != NO_NOTICE else None
    topology = plan.topology
    folder = next((variable.value for variable in plan.env if variable.name == FOLDER_VARIABLE), None)
    hangs = (
        HangOptions(
            Path(folder),
            topology.node_rank,
            topology.world_size or 1,
            env.hostname,
            plan.log_path,
            options.on_hang,
            options.hang_after_s,
            {index: f"GPU {gpu.index}" for index, gpu in enumerate(plan.hardware.gpus.devices)},
            memory,
        )
        if folder is not None
        else None
    )  # the processes are not to be observed
    return TrainingCommand(
        reported.passed_to(Command(plan.argv, plan.child_environment(env.inherited()))),
        plan.log_path,
        node_prefix(topology.node_rank) if topology.launched > 1 else "",
        DEFAULT_GRACE_S if request.grace_s is None else request.grace_s,
        reported,
        hangs,
        health_options(plan, env, options.health_interval_s),
        int(request.log_limit_gib * _GIB),
        is_agent=plan.launcher in ("torchrun", "accelerate"),
        nnodes=topology.nnodes,
        batch_note=plan.batch_note,
        packages=plan.packages,
        script=plan.training.program.source,
        notices=tuple(sources(env, MetadataService())) if notice_signal is not None else (),
        notice_signal=notice_signal,
    )


def health_options(plan: LaunchPlan, env: Environment, interval_s: float) -> HealthOptions:
    """Return the devices that the job uses on this node: its GPUs, and the ports that carry its traffic."""
    machine = plan.hardware
    return HealthOptions(
        interval_s,
        plan.topology.node_rank,
        env.hostname,
        () if machine.assumed else machine.gpus.monitored,
        tuple(plan.ports_in_use(env.inherited())),
    )


def open_folder(folder: Path) -> None:
    """Create the empty folder, and hold it until :func:`remove_folder`, or the end of this process.

    Raises OSError, InputError.
    """
    _release(folder)
    problem: Exception = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    for _ in range(_MOST_TRIES):
        # Until it is locked, another launch that starts at this moment may remove it.
        try:
            files.private_folder(folder, _PURPOSE)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, InputError) as error:
            if not isinstance(error.__cause__ or error, FileNotFoundError):
                raise
            problem = error
            continue
        with suppress(OSError):  # a file system without locks, on which nothing is removed
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), folder.lstat()):
                break
        os.close(descriptor)
    else:
        raise problem
    _locked[folder] = descriptor
    for path in folder.iterdir():
        path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove the folder with what the processes left there."""
    shutil.rmtree(folder, ignore_errors=True)
    _release(folder)


def sweep(temporary: Path) -> None:
    """Remove the folders of launches that have ended from this user's temporary folder."""
    if files.private_problem(temporary):
        return
    with suppress(OSError):
        for folder in temporary.iterdir():
            if _NAME.fullmatch(folder.name) and folder not in _locked and not files.private_problem(folder):
                with suppress(OSError), _alone(folder):
                    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock a folder for this process. Raises OSError if another process holds it, or if locks do not work."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _release(folder: Path) -> None:
    descriptor = _locked.pop(folder, None)
    if descriptor is not None:
        os.close(descriptor)
