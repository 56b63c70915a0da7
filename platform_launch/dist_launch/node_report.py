"""The state of a node: whether it waits, what runs there, its GPUs, and its problems."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from platform_launch.dist_launch import job_records
from platform_launch.dist_launch.folder import WaitFolder
from platform_launch.dist_launch.job_end import gpus


def report(folder: WaitFolder) -> dict[str, Any]:
    """Return wait's process id (None: it has ended), jobs, GPUs, and problems as text."""
    known = job_records.records(folder)
    found, problem = gpus()
    return {
        "wait": folder.owner(),
        "jobs": [
            {
                **asdict(record),
                "processes": sum(1 for _ in job_records.processes(folder, record.name, [record])),
                "led": record.leader_lives,
            }
            for record in known
        ],
        "gpus": [
            {"index": gpu.index, "name": gpu.name, "used_gib": gpu.used_gib, "memory_gib": gpu.memory_gib}
            for gpu in found.devices
        ],
        "problems": [*([problem] if problem else []), *folder.hindrances()],
    }
