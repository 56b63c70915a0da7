"""What runs on one node, and which place in the job it is for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from platform_launch.launch.exit_file import ExitFile
from platform_launch.launch.hang_watch import HangOptions
from platform_launch.launch.health_watch import NO_DEVICES, HealthOptions
from platform_launch.supervise import Command

# The training finds here how often it was started again.
RESTART_COUNT = "PLATFORM_LAUNCH_RESTART_COUNT"


@dataclass(frozen=True)
class NodePlace:
    """A place in the job: the rank of a node, and the address of node 0, which may not be the first one's."""

    node_rank: int
    master_addr: str


@dataclass(frozen=True)
class TrainingCommand:
    """What a supervisor needs to run a training."""

    command: Command
    log_path: Path
    prefix: str
    grace_s: float
    exit_file: ExitFile
    hangs: HangOptions | None = None
    health: HealthOptions = NO_DEVICES
    log_limit_bytes: int = 0

    @property
    def temporary(self) -> list[Path]:
        """The folders that end with the launch."""
        folders = (self.exit_file.folder, self.hangs.folder if self.hangs is not None else None)
        return [folder for folder in folders if folder is not None]

    def started_again(self, restarts: int) -> TrainingCommand:
        """Return the command of a start after so many others, which it finds in its environment."""
        env = {**self.command.env, RESTART_COUNT: str(restarts)}
        return replace(self, command=replace(self.command, env=env))
