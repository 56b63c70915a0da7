"""What ``dist-launch run`` asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """A script for all nodes. Paths are absolute; ``nodes`` None means all; ``variables`` are added on each.

    ``interpreter`` stands before the script, empty for one that runs by itself. ``stamp`` is the time in the
    names of the logs.
    """

    name: str
    nodes: str | None
    script: str
    interpreter: tuple[str, ...]
    arguments: tuple[str, ...]
    directory: str
    variables: Mapping[str, str]
    grace_s: float
    keep_going: bool
    fold: bool
    log_folder: str
    stamp: str
