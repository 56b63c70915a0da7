"""The messages of a waiting cluster over the rendezvous."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from platform_launch.dist_launch.cluster import ClusterMember
from platform_launch.rendezvous.messages import Message
from platform_launch.rendezvous.purpose import Purpose


@dataclass(frozen=True)
class WaitRoster(Message):
    """The members of the cluster, as published by rank 0.

    ``members`` are all nodes by rank; empty until all have joined. ``edition`` grows with every change.
    """

    most_bytes: ClassVar[int] = 4 * 2**20

    edition: int
    formed_at: str
    absent: tuple[int, ...]
    members: tuple[ClusterMember, ...]


@dataclass(frozen=True)
class NodeReadiness(Message):
    """A node's answer to a roster: ``problem`` is empty if rank 0 can log in and the files are written."""

    most_bytes: ClassVar[int] = 8 * 1024

    edition: int
    problem: str = ""


PURPOSE = Purpose("dist-launch wait", (ClusterMember, WaitRoster, NodeReadiness))
