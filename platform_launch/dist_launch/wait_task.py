"""What ``wait`` passes to its rendezvous process."""

from __future__ import annotations

from dataclasses import dataclass

from platform_launch.dist_launch.cluster import ClusterMember
from platform_launch.rendezvous.messages import Message


@dataclass(frozen=True)
class WaitTask(Message):
    """The task: ``member`` is this node; ``key`` is rank 0's private key, empty on other nodes.

    ``own_sshd``: the key goes into the private server's file instead of the user's. ``named_key`` is the key
    that the user named for this node; if empty, the first one that arrives is accepted.
    """

    member: ClusterMember
    nnodes: int
    job_id: str | None
    master_addr: str
    ports: tuple[int, ...]
    timeout_s: float
    folder: str
    key: str
    own_sshd: bool
    named_key: str
