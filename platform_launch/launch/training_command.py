"""What runs on one node, which place in the job it is for, and what the watches of it need to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import Signals

from platform_launch.errors import InputError
from platform_launch.events import Event, event
from platform_launch.hardware import Gpu, HcaPort
from platform_launch.launch.exit_code import ExitFile
from platform_launch.launch.notices import Source
from platform_launch.launch.observed_folder import open_folder, remove_folder, sweep
from platform_launch.observe.memory import MemoryHeld
from platform_launch.supervise import Command

# The training finds here how often it was started again.
RESTART_COUNT = "PLATFORM_LAUNCH_RESTART_COUNT"

# What is done about a hang.
REPORT, STOP, RESTART = "report", "stop", "restart"


@dataclass(frozen=True)
class NodePlace:
    """A place in the job: the rank of a node, and the address of node 0, which may not be the first one's."""

    node_rank: int
    master_addr: str


@dataclass(frozen=True)
class HangOptions:
    """What the hang monitor of this node needs to know.

    ``folder`` is the private folder that the hook writes to, None where nothing is observed; ``after_s`` is 0
    where no hang is looked for, which leaves ``inspect`` its answers. ``memory()`` is the most that the
    training held so far.
    """

    folder: Path | None
    node_rank: int
    world_size: int
    host: str
    log: Path
    on_hang: str = REPORT
    after_s: float = 300.0
    gpus: dict[int, str] = field(default_factory=dict)
    memory: Callable[[], MemoryHeld] = MemoryHeld

    def open_folder(self, tell: Callable[[Event], None]) -> bool:
        """Make the folder, empty: an earlier start may have left files there. Tells where that fails."""
        if self.folder is None:
            return False
        try:
            sweep(self.folder.parent)
            open_folder(self.folder)
        except (OSError, InputError) as error:
            tell(event("not-observed", problem=str(error)))
            return False
        return True

    def remove_folder(self) -> None:
        """Remove the folder with what the training's processes left there."""
        if self.folder is not None:
            remove_folder(self.folder)


@dataclass(frozen=True)
class HealthOptions:
    """The devices of a training on a node, and how often they are asked; 0: only when it has failed."""

    interval_s: float
    node_rank: int
    host: str
    gpus: tuple[Gpu, ...] = ()
    ports: tuple[HcaPort, ...] = ()
    sys_root: Path = Path("/sys")

    @property
    def has_devices(self) -> bool:
        """Whether there is anything to ask."""
        return bool(self.gpus or self.ports)


NO_DEVICES = HealthOptions(0.0, 0, "")


@dataclass(frozen=True)
class TrainingCommand:
    """What a supervisor needs to run a training.

    ``is_agent``: it starts the ranks, and can be held. ``notices`` tell that this node will be taken away;
    the ranks then get ``notice_signal``, None if that is not wanted.
    """

    command: Command
    log_path: Path
    prefix: str
    grace_s: float
    exit_file: ExitFile
    hangs: HangOptions | None = None
    health: HealthOptions = NO_DEVICES
    log_limit_bytes: int = 0
    is_agent: bool = False
    nnodes: int = 1
    notices: tuple[Source, ...] = ()
    notice_signal: Signals | None = None

    @property
    def temporary(self) -> list[Path]:
        """The folders that end with the launch."""
        folders = (self.exit_file.folder, self.hangs.folder if self.hangs is not None else None)
        return [folder for folder in folders if folder is not None]

    def started_again(self, restarts: int) -> TrainingCommand:
        """Return the command of a start after so many others, which it finds in its environment."""
        env = {**self.command.env, RESTART_COUNT: str(restarts)}
        return replace(self, command=replace(self.command, env=env))
