"""A rejection as the error with which a node's command ends."""

from __future__ import annotations

from platform_launch.errors import LaunchError, NodesAbsentError, NodesDisagreeError, TopologyError
from platform_launch.rendezvous.protocol import Rejection, RejectionKind, describe_rejection

_SAME_SECRET = "give every node the same PLATFORM_LAUNCH_SECRET (or _FILE), or none"  # noqa: S105 - advice

_FAMILIES: dict[RejectionKind, tuple[type[LaunchError], str]] = {
    RejectionKind.OTHER_JOB: (
        NodesAbsentError,
        "check MASTER_ADDR and INIT_MASTER_PORT: two jobs must not meet at one address",
    ),
    RejectionKind.OTHER_PURPOSE: (NodesDisagreeError, "start the same command on every node"),
    RejectionKind.OTHER_PROTOCOL: (
        NodesDisagreeError,
        "use one image, or one version of platform-launch, on all nodes",
    ),
    RejectionKind.RANK_OUT_OF_RANGE: (
        TopologyError,
        "give every node the same number of nodes, and ranks from 0",
    ),
    RejectionKind.RANK_TAKEN: (
        TopologyError,
        "every node needs a rank of its own: check what sets RANK (or --node-rank)",
    ),
    RejectionKind.REPLACED: (
        NodesAbsentError,
        "look at this node's network: node 0 had not heard of it for a while",
    ),
    RejectionKind.NO_SECRET: (NodesDisagreeError, _SAME_SECRET),
    RejectionKind.OTHER_SECRET: (NodesDisagreeError, _SAME_SECRET),
    RejectionKind.COORDINATOR_WITHOUT_SECRET: (NodesDisagreeError, _SAME_SECRET),
}


def launch_error(rejection: Rejection) -> LaunchError:
    """Return what went wrong and what to do, with the exit code of its family."""
    family, hint = _FAMILIES[rejection.kind]
    return family(describe_rejection(rejection), hint)
