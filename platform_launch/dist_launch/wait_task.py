"""What ``wait`` hands to its process that takes part in the rendezvous."""

from __future__ import annotations

from dataclasses import dataclass

from platform_launch.dist_launch.cluster import ClusterMember
from platform_launch.rendezvous.messages import Message


@dataclass(frozen=True)
class WaitTask(Message):
    """What ``wait`` wants done. ``member`` is this node; ``key`` the private key of rank 0, else empty.

    ``own_sshd`` tells that the key goes into the private server's file, not into the user's. ``named_key`` is
    the one that the user named for this node, empty where the first that comes is taken.
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
