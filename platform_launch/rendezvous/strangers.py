"""Who left an entry that cannot be used: a node of another build or without the secret is named. Pure."""

from __future__ import annotations

from dataclasses import replace

from platform_launch.rendezvous import protocol
from platform_launch.rendezvous.authentication import Seal, UnauthenticatedError
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.membership import Change, ChangeKind, Member
from platform_launch.rendezvous.messages import InvalidMessageError, Message
from platform_launch.rendezvous.protocol import Hello, Join, Rejection, RejectionKind


def of_another_build(slot: int, heartbeat: bytes, seal: Seal, ours: Hello) -> Change | None:
    """Turn away a node that left a Hello where its heartbeat would lie; None for all else.

    ``seal`` is bound to node 0's announcement: a Hello that answered that of an earlier start says nothing.
    """
    kind = RejectionKind.OTHER_PROTOCOL
    try:
        theirs = seal.open(protocol.HELLO, heartbeat, Hello)
    except UnauthenticatedError as error:
        theirs, kind = error.claim, _without_our_secret(error)
    except InvalidMessageError:
        return None
    if theirs.protocol == ours.protocol:
        return None  # node 0's own, shown again, or of a node that was shown another than node 0's
    theirs_is, ours_is = theirs.build, ours.build
    if theirs.job_id and ours.job_id and theirs.job_id != ours.job_id:
        kind, theirs_is, ours_is = RejectionKind.OTHER_JOB, theirs.job_id, ours.job_id
    rejection = Rejection(kind, theirs.node_rank, theirs.place, ours.place, theirs_is, ours_is)
    node = Fingerprint(theirs.node_rank, 0, theirs.place, (), "", theirs.job_id)
    return Change(ChangeKind.REJECTED, Member(slot, theirs.node_rank, node), rejection=rejection)


def without_our_secret(
    slot: int, join: bytes, error: InvalidMessageError, seal: Seal, ours: Hello
) -> Change | None:
    """Turn away a node whose entries lack our seal, and nothing else; None for rubbish."""
    if not isinstance(error, UnauthenticatedError):
        return None
    try:
        entry = replace(seal, secret=None).open(f"join/{slot}", join, Join)
    except InvalidMessageError:
        return None
    node, kind = entry.node, _without_our_secret(error)
    rejection = Rejection(kind, node.node_rank, node.place, ours.place)
    rank = None if entry.spare else node.node_rank
    return Change(ChangeKind.REJECTED, Member(slot, rank, node), rejection=rejection)


def _without_our_secret(error: UnauthenticatedError[Message]) -> RejectionKind:
    return RejectionKind.OTHER_SECRET if error.sealed else RejectionKind.NO_SECRET
