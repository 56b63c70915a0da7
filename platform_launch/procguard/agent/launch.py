"""What a run's supervisor process is told to run: the agent writes it, the supervisor reads it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from platform_launch.procguard.agent import records

MARKER = "PROCGUARD_RUN"
"""Every process of a run carries it, ``INSTANCE:NUMBER:GENERATION``, for when its supervisor is gone."""


@dataclass(frozen=True)
class RunLaunch:
    """One training. ``environment`` is its whole environment, ``lock`` the file that a living agent holds.

    ``orphan_after_s``: how long it goes on without an agent.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    grace_s: float
    lock: str
    orphan_after_s: float

    def write(self, folder: Path) -> None:
        """Write it into a run's folder. Raises OSError."""
        records.write(folder / records.LAUNCH, asdict(self))

    @staticmethod
    def forget(folder: Path) -> None:
        """Remove it: it holds the training's whole environment, and nobody reads it a second time."""
        with suppress(OSError):
            (folder / records.LAUNCH).unlink(missing_ok=True)

    @classmethod
    def read(cls, folder: Path) -> RunLaunch:
        """Read what :meth:`write` wrote. Raises KeyError, TypeError for anything else."""
        found = records.read(folder / records.LAUNCH) or {}
        return cls(**{**found, "command": tuple(found["command"])})
