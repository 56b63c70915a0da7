"""What a node makes of who answers at node 0: whose rendezvous it is, and whether both fit together.

``strangers`` is the other side of it: what node 0 makes of those who come and do not fit.
"""

from __future__ import annotations

from platform_launch import __version__
from platform_launch.rendezvous import protocol
from platform_launch.rendezvous.authentication import Seal, Secret, UnauthenticatedError
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.messages import InvalidMessageError
from platform_launch.rendezvous.protocol import Announcement, Hello, Rejection, RejectionKind
from platform_launch.rendezvous.purpose import Purpose
from platform_launch.rendezvous.rejection import launch_error
from platform_launch.rendezvous.store import Store
from platform_launch.text import Phrase


class NoRendezvousError(Exception):
    """What answers is no rendezvous of this kind, or has no room; the message says which. Try again."""


class RejectedError(Exception):
    """This node cannot take part."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(launch_error(rejection).message)
        self.rejection = rejection


class Handshake:
    """``announcement`` says whose rendezvous this is, and ``seal`` closes the entries of its round.

    ``foreign`` is set where node 0 speaks another protocol, and ``hello`` is then what it is to be left, so
    that it hears of this node. ``untrusted`` is set where node 0 does not share this node's secret. Raises
    StoreError, NoRendezvousError and RejectedError.
    """

    def __init__(self, store: Store, me: Fingerprint, purpose: Purpose, secret: Secret | None) -> None:
        self._me = me
        ours = Hello(purpose.protocol, __version__, me.node_rank, me.place, me.job_id)
        # In this order: who finds the announcement finds the hello, which node 0 writes before it.
        data, hello = store.read([protocol.ANNOUNCEMENT, protocol.HELLO])
        if not data:
            raise NoRendezvousError(Phrase("no rendezvous answers there"))
        # Whether it is sealed with our secret is asked when this node joins: node 0 shall hear of us.
        unsealed, first_seal = Seal(None, "", ""), Seal(secret, purpose.name, "")
        try:
            theirs = unsealed.open(protocol.HELLO, hello or b"", Hello)
        except InvalidMessageError:
            theirs = None
        try:
            self.announcement = unsealed.open(protocol.ANNOUNCEMENT, data, Announcement)
        except InvalidMessageError as error:
            if theirs is None or theirs.protocol == ours.protocol:
                problem = Phrase(
                    "what answers there is no rendezvous of this version of the launcher: {problem}",
                    problem=str(error),
                )
                raise NoRendezvousError(problem) from error
            # Enough of one to come to it as a stranger.
            self.announcement = Announcement(purpose.name, "", theirs.place, "", me.nnodes, me.nnodes, "")
        if self.announcement.purpose != purpose.name:
            raise RejectedError(
                self._rejection(RejectionKind.OTHER_PURPOSE, purpose.name, self.announcement.purpose)
            )
        self.seal = Seal(secret, purpose.name, self.announcement.nonce)
        self.hello = first_seal.bound_to(data).close(protocol.HELLO, ours)
        self.foreign = self.untrusted = None
        if theirs is None or theirs.protocol != ours.protocol:
            build = theirs.build if theirs is not None else "an older version"
            self.foreign = self._rejection(RejectionKind.OTHER_PROTOCOL, ours.build, build)
        try:
            first_seal.open(protocol.ANNOUNCEMENT, data, Announcement)
        except UnauthenticatedError as error:  # where only node 0 has a secret, it says so itself
            kind = RejectionKind.OTHER_SECRET if error.sealed else RejectionKind.COORDINATOR_WITHOUT_SECRET
            self.untrusted = self._rejection(kind)
        except InvalidMessageError:
            pass  # foreign

    def _rejection(self, kind: RejectionKind, theirs: str = "", ours: str = "") -> Rejection:
        return Rejection(kind, self._me.node_rank, self._me.place, self.announcement.place, theirs, ours)
