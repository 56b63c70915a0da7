"""The way to node 0: its name, its port, its rendezvous, and a place in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from platform_launch.rendezvous.authentication import Seal, Secret
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.handshake import NoRendezvousError, RejectedError
from platform_launch.rendezvous.messages import ConsoleLine, Message
from platform_launch.rendezvous.participant import Participant
from platform_launch.rendezvous.port_discovery import discover_port
from platform_launch.rendezvous.protocol import RejectionKind
from platform_launch.rendezvous.purpose import Purpose
from platform_launch.rendezvous.reach import Reach, ReachStep, reach
from platform_launch.rendezvous.store import Store, StoreError, StoreSilentError
from platform_launch.rendezvous.verdict import RunRefusal
from platform_launch.text import Phrase

CONNECT_LIMIT_S = 3.0
# To connect, torch asks for names, and a store that is no store answers nothing.
_OPEN_LIMIT_S = 2 * CONNECT_LIMIT_S
# Nodes that start together soon find each other, and who waits for minutes need not ask so often.
_FIRST_RETRY_S, _RETRY_S = 0.1, 0.5
_SAY_EVERY_S = 5.0
# Nodes that start together need not be told that node 0 is a moment later.
_SAY_FIRST_S = 1.0
# A stranger may write what looks like a node 0 with another secret, and node 0 mends that within a second or
# two; or it is that of an earlier start, which ends.
_DOUBTED_FOR_S = 5.0
_MTU = "if that stays, large packets get lost: compare the MTU of all links on the way (ip link)"
_DOUBTED = (
    RejectionKind.OTHER_SECRET,
    RejectionKind.COORDINATOR_WITHOUT_SECRET,
    RejectionKind.OTHER_PURPOSE,
    RejectionKind.OTHER_PROTOCOL,
)


class NeverReachedError(Exception):
    """Time is up; the message says what stood in the way last."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class CoordinatorRefusedError(Exception):
    """Node 0 cannot serve a rendezvous, and says so."""

    def __init__(self, refusal: RunRefusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


class CoordinatorGoneError(Exception):
    """Node 0 is there, and its rendezvous is another."""


@dataclass(frozen=True)
class JoinTarget:
    """The rendezvous that a node joins: where node 0 is expected, what for, and as whom.

    ``port`` is where node 0 is expected; on ``discovery_port``, if that is a port, node 0 says another.
    """

    host: str
    port: int
    purpose: Purpose
    me: Fingerprint
    secret: Secret | None = None
    spare: bool = False
    details: Message | None = None
    discovery_port: int = 0


class Connector:
    """Tries until node 0 is reached. ``pause(seconds)`` waits, and may raise to give up.

    ``say`` hears every few seconds what stands in the way. ``answer_limit_s`` is how long an answer of node 0
    may take later. ``host`` and ``port`` are where node 0 was looked for last. ``examine`` is called once
    node 0 is reached, and returns how this node presents itself. ``elsewhere`` are further places where it
    may be, and ``obstacle`` says of who was reached why this node does not join there. ``connect`` is how a
    store is reached, as ``Store.connect`` does it.
    """

    def __init__(
        self,
        target: JoinTarget,
        *,
        timeout_s: float,
        answer_limit_s: float,
        pause: Callable[[float], None],
        say: Callable[[ConsoleLine], None],
        examine: Callable[[Fingerprint], Fingerprint] = lambda me: me,
        elsewhere: Sequence[JoinTarget] = (),
        obstacle: Callable[[JoinTarget, Participant], str] = lambda _target, _found: "",
        connect: Callable[..., Store] = Store.connect,
    ) -> None:
        self._connect = connect
        self._usual = self._target = target
        self._elsewhere = elsewhere
        self._obstacle = obstacle
        self.port = target.port
        self._timeout_s = timeout_s
        self._answer_limit_s = answer_limit_s
        self._pause = pause
        self._say = say
        self._examine = examine
        self._began = time.monotonic()
        self._deadline = self._began + timeout_s
        self._reported_at = self._began - _SAY_EVERY_S + _SAY_FIRST_S
        self._refusal: RunRefusal | None = None

    @property
    def host(self) -> str:
        """See ``port``."""
        return self._target.host

    def join(self) -> Participant:
        """Reach the rendezvous and take a place.

        Raises NeverReachedError, RejectedError, and CoordinatorRefusedError where node 0 is nowhere else.
        """
        doubted_since: float | None = None
        while True:
            now = time.monotonic()
            participant = None
            self._target, self._refusal = self._usual, None
            try:
                participant, obstacle = self.find()
                if participant is not None:
                    participant.join()
                    return participant
            except StoreSilentError as error:
                obstacle = Phrase(
                    "node 0 answers, but not to a longer message ({problem}); {mtu}", problem=error, mtu=_MTU
                )
            except (NoRendezvousError, StoreError) as error:
                obstacle = error.args[0]
            except RejectedError as error:
                doubted_since = doubted_since or now
                if error.rejection.kind not in _DOUBTED or now - doubted_since >= _DOUBTED_FOR_S:
                    raise
                obstacle = error.args[0]
            if participant is not None:
                participant.close()
            self._heed_refusal()
            found = self._join_elsewhere()
            if found is not None:
                return found
            if now >= self._deadline:
                raise NeverReachedError(
                    Phrase(
                        "node 0 was not reached in {limit:g} s: {obstacle}",
                        limit=self._timeout_s,
                        obstacle=obstacle,
                    )
                )
            if now - self._reported_at >= _SAY_EVERY_S:
                self._reported_at = now
                text = Phrase(
                    "waiting for node 0 for {waited:.0f} s: {obstacle}",
                    waited=now - self._began,
                    obstacle=obstacle,
                )
                self._say(ConsoleLine("INFO", text, "rendezvous-waiting"))
            self._pause(min(_FIRST_RETRY_S + (now - self._began) / 8, _RETRY_S))

    def _heed_refusal(self) -> None:
        if self._refusal is not None and not self._elsewhere:
            raise CoordinatorRefusedError(self._refusal)

    def find(self) -> tuple[Participant | None, str]:
        """Try once; return who could join where this node is expected, or None and what stands in the way."""
        participant, obstacle = self.enter(self._find())
        if participant is None:
            return None, obstacle
        try:
            obstacle = self._obstacle(self._target, participant)
        except StoreError as error:
            obstacle = error.args[0]
        if obstacle:
            participant.close()
            return None, obstacle
        return participant, ""

    def _join_elsewhere(self) -> Participant | None:
        for target in self._elsewhere:
            self._target, participant = target, None
            # What is not right there, no more than a stranger's rendezvous, is no reason to end.
            with suppress(NoRendezvousError, StoreError, RejectedError):
                participant, _ = self.find()
                if participant is not None:
                    participant.join()
                    return participant
            if participant is not None:
                participant.close()
        self._target = self._usual
        return None

    def reconnect(self, known: Participant) -> Participant | None:
        """Return a new connection in the place of one that broke, None when it cannot be had right now.

        Raises CoordinatorGoneError, and RejectedError where another node has its place by now.
        """
        participant = None
        try:
            participant, _ = self.enter(self._reach())
            if participant is not None and participant.is_same_round(known):
                participant.succeed(known)
                return participant
        except RejectedError as error:
            if error.rejection.kind not in _DOUBTED:
                raise
        except (NoRendezvousError, StoreError):
            pass
        else:
            if participant is not None:
                raise CoordinatorGoneError
        if participant is not None:
            participant.close()
        return None

    def enter(self, found: Reach) -> tuple[Participant | None, str]:
        """Return a participant at an address just reached, or None and what stands in the way."""
        target = self._target
        if found.step is not ReachStep.OPEN:
            return None, found.in_words(target.host, self.port)
        store: Store | None = None
        obstacle: str = Phrase("no rendezvous answers there")
        try:
            # The address, not the name: it is the one that was just reached.
            store = self._connect(
                found.address, self.port, limit_s=self._answer_limit_s, open_limit_s=_OPEN_LIMIT_S
            )
            # Now, not before: the node 0 that was reached first may have been that of the last start.
            me = replace(self._examine(target.me), wall_clock_s=time.time())
            participant = Participant(
                store,
                me,
                purpose=target.purpose,
                secret=target.secret,
                spare=target.spare,
                details=target.details,
            )
        except (NoRendezvousError, RejectedError, StoreError) as error:
            if store is not None:
                store.close()
            if isinstance(error, RejectedError):
                raise
            if isinstance(error, NoRendezvousError):
                obstacle = error.args[0]
            where = f"{target.host}:{self.port} ({found.address})"
            return None, Phrase("{where} accepts connections, but {obstacle}", where=where, obstacle=obstacle)
        return participant, ""

    def _find(self) -> Reach:
        """Reach the expected port, or the one that node 0 says; its name is looked up once."""
        target = self._target
        self.port = target.port
        found = self._reach()
        if target.discovery_port and found.step in (ReachStep.OPEN, ReachStep.REFUSED):
            first_seal = Seal(target.secret, target.purpose.name, "")
            answer = discover_port(found.address, target.discovery_port, first_seal)
            if isinstance(answer, RunRefusal):
                self._refusal = answer
            elif answer is not None and answer != target.port:
                self.port = answer
                return reach(found.address, answer, CONNECT_LIMIT_S)
        return found

    def _reach(self) -> Reach:
        return reach(self._target.host, self.port, CONNECT_LIMIT_S)
