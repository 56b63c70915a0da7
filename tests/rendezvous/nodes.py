"""Fingerprints for tests: healthy nodes of one job, but for what a test changes."""

from __future__ import annotations

from typing import Any

from platform_launch.environment import Environment
from platform_launch.platforms import detect
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.topology import Topology

FACTS = {
    "nodes announced": "2",
    "processes per node": "8",
    "world size": "16",
    "platform": "kubeflow",
    "launcher": "accelerate",
    "master port": "29500",
    "training config": "0a1b2c3d4e5f",
    "NCCL": "2.27.3",
    "torch": "2.8.0+cu128",
    "torch release": "2.8",
    "GPU driver": "570.86.15",
}


def fingerprint(
    rank: int, nnodes: int = 2, *, facts: dict[str, str] | None = None, **changes: Any
) -> Fingerprint:
    values: dict[str, Any] = {
        "node_rank": rank,
        "nnodes": nnodes,
        "host": f"gpu-{rank}",
        "addresses": (f"10.0.0.{rank}",),
        "identity": f"launcher {rank}",
        "job_id": "job-7",
        "gpus": 8,
        "facts": {**FACTS, "nodes announced": str(nnodes), **(facts or {})},
        "program": changes.get("job", ""),
    }
    return Fingerprint(**{**values, **changes})


def topology_and_environment(**variables: str) -> tuple[Topology, Environment]:
    """Return node 1 of 2, as the simplest platform describes it."""
    four = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    env = Environment({**four, **variables}, hostname="gn7", address="10.0.0.7")
    return detect(env), env
