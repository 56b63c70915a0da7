"""Why a node is rejected, in words, and the error with which its command exits."""

from __future__ import annotations

from platform_launch.errors import LaunchError, NodesAbsentError, NodesDisagreeError, TopologyError
from platform_launch.rendezvous.protocol import Rejection, RejectionKind
from platform_launch.text import Phrase

_SAME_SECRET = Phrase("set the same PLATFORM_LAUNCH_SECRET (or _FILE) on every node, or none")

# The family of the error, what happened and what to do.
_KINDS: dict[RejectionKind, tuple[type[LaunchError], str, str]] = {
    RejectionKind.OTHER_JOB: (
        NodesAbsentError,
        "{place} belongs to job {theirs!r}, but the rendezvous at this address is that of job {ours!r}",
        Phrase("use another MASTER_PORT or another MASTER_ADDR for one of the two jobs"),
    ),
    RejectionKind.OTHER_PURPOSE: (
        NodesDisagreeError,
        "{who} belongs to {theirs}, but {host} waits for {ours}",
        Phrase("start the same command on every node"),
    ),
    RejectionKind.OTHER_PROTOCOL: (
        NodesDisagreeError,
        "the launchers do not understand each other: {theirs} on {who}, {ours} on {host}",
        Phrase("use one image, or one version of platform-launch, on all nodes"),
    ),
    RejectionKind.RANK_OUT_OF_RANGE: (
        TopologyError,
        "{place} is node {rank} of {theirs}, but {host} expects {ours} nodes",
        Phrase("set the same number of nodes on every node, and ranks from 0"),
    ),
    RejectionKind.RANK_TAKEN: (
        TopologyError,
        "two nodes have rank {rank}: {by} and {place}",
        (
            Phrase(
                "every node needs its own rank: check what sets RANK (or --node-rank); if "
                "another job runs on these hosts, use another MASTER_PORT for this one"
            )
        ),
    ),
    RejectionKind.REPLACED: (
        NodesAbsentError,
        "the place of {who}, which was silent, was given to {by}",
        Phrase("check this node's network: node 0 received nothing from it for a while"),
    ),
    RejectionKind.NO_SECRET: (
        NodesDisagreeError,
        "{who} has no PLATFORM_LAUNCH_SECRET, {host} has one",
        _SAME_SECRET,
    ),
    RejectionKind.OTHER_SECRET: (
        NodesDisagreeError,
        "{who} has another PLATFORM_LAUNCH_SECRET than {host}",
        _SAME_SECRET,
    ),
    RejectionKind.COORDINATOR_WITHOUT_SECRET: (
        NodesDisagreeError,
        "{host} has no PLATFORM_LAUNCH_SECRET, {who} has one",
        _SAME_SECRET,
    ),
}


def launch_error(rejection: Rejection) -> LaunchError:
    """Return what went wrong and what to do, with the exit code of its family."""
    family, text, hint = _KINDS[rejection.kind]
    message = Phrase(
        text,
        who=Phrase("node {rank} ({place})", rank=rejection.node_rank, place=rejection.place),
        host=Phrase("node {rank} ({place})", rank=0, place=rejection.by),
        rank=rejection.node_rank,
        place=rejection.place,
        by=rejection.by,
        theirs=rejection.theirs,
        ours=rejection.ours,
    )
    return family(message, hint)
