"""What the nodes of a waiting cluster tell each other over the rendezvous."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from platform_launch.dist_launch.cluster import ClusterMember
from platform_launch.rendezvous.messages import Message
from platform_launch.rendezvous.purpose import Purpose


@dataclass(frozen=True)
class WaitRoster(Message):
    """Who is in the cluster, as rank 0 publishes it.

    ``members`` are all nodes by rank, and none before all have come. ``edition`` grows with every change.
    """

    most_bytes: ClassVar[int] = 4 * 2**20

    edition: int
    formed_at: str
    absent: tuple[int, ...]
    members: tuple[ClusterMember, ...]


@dataclass(frozen=True)
class NodeReadiness(Message):
    """What a node made of a roster: ``problem`` is empty when rank 0 can get in and the files are written."""

    most_bytes: ClassVar[int] = 8 * 1024

    edition: int
    problem: str = ""


PURPOSE = Purpose("dist-launch wait", (ClusterMember, WaitRoster, NodeReadiness))
