"""How a node is: whether it waits, what runs there, its GPUs, and what would go wrong."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from platform_launch.debug_cluster import jobs
from platform_launch.debug_cluster.folder import Folder, write_private
from platform_launch.debug_cluster.sweep import gpus

# An empty file finds room on a disk that is full.
_PROBE_BYTES = 16 * 1024


def report(folder: Folder) -> dict[str, Any]:
    """Return wait's process id (None: it is gone), jobs, GPUs, and problems in words."""
    known = jobs.records(folder)
    found, problem = gpus()
    return {
        "wait": folder.owner(),
        "jobs": [
            {
                **asdict(record),
                "processes": sum(1 for _ in jobs.processes(folder, record.name, [record])),
                "led": record.leader_lives,
            }
            for record in known
        ],
        "gpus": [
            {"index": gpu.index, "name": gpu.name, "used_gib": gpu.used_gib, "memory_gib": gpu.memory_gib}
            for gpu in found.devices
        ],
        "problems": [*([problem] if problem else []), *_problems(folder)],
    }


def _problems(folder: Folder) -> list[str]:
    found = []
    if folder.owner() is None:
        found.append("its dist-launch wait has ended: start it again")
    try:
        folder.read_environment()
    except (OSError, ValueError) as error:
        found.append(f"the variables that wait captured cannot be read: {error}")
    probe = folder.path / "probe"
    try:
        write_private(probe, "x" * _PROBE_BYTES)
        probe.unlink()
    except OSError as error:
        found.append(f"{folder.path} cannot be written: {error.strerror}")
    return found
