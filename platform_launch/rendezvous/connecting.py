"""How a node reaches node 0: its name, its ports, its rendezvous, and a membership in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.client import CONNECT_LIMIT_S, Opened, Unopened, open_all
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.loop import ConnectionLostError, event_loop
from platform_launch.rendezvous.messages import ConsoleLine, M, Message
from platform_launch.rendezvous.participant import NodeSession, Participant, RejectedError, hello_of
from platform_launch.rendezvous.protocol import RejectionKind, Welcome
from platform_launch.rendezvous.purpose import Purpose
from platform_launch.rendezvous.reach import Reach, ReachStep, resolve
from platform_launch.text import Phrase
from platform_launch.values import dataclass

# Nodes that start together find each other soon; later they need not try so often.
_FIRST_RETRY_S, _RETRY_S = 0.1, 0.5
_LOG_EVERY_S = 5.0
_LOG_FIRST_S = 1.0
# The rendezvous that answers may be that of an earlier start, which is ending.
_DOUBTED_FOR_S = 5.0
_OPEN_LIMIT_S = 3 * CONNECT_LIMIT_S
_DOUBTED = (
    RejectionKind.OTHER_SECRET,
    RejectionKind.NO_SECRET,
    RejectionKind.COORDINATOR_WITHOUT_SECRET,
    RejectionKind.OTHER_JOB,
    RejectionKind.OTHER_PURPOSE,
    RejectionKind.OTHER_PROTOCOL,
)


# Name of node 0 → the address where it was reached last: a name server may return an old one, or none.
_reached: dict[str, str] = {}


class NeverReachedError(Exception):
    """Node 0 was not reached in time. The message is the last obstacle."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True)
class JoinTarget:
    """The rendezvous that a node joins: where node 0 is expected, for which purpose, and as which node.

    ``mark`` distinguishes the job from others on the same hosts.
    """

    host: str
    ports: tuple[int, ...]
    purpose: Purpose
    me: Fingerprint
    secret: Secret | None = None
    spare: bool = False
    details: Message | None = None
    mark: str = ""


@dataclass(frozen=True)
class Found:
    """A rendezvous that answers, before this node joins it."""

    target: JoinTarget
    address: str
    port: int
    welcome: Welcome

    def peek(self, kind: type[M]) -> M | None:
        """Return the value that its coordinator has published; None if there is none that can be trusted."""
        target = self.target
        hello = hello_of(target.me, target.purpose, target.secret, target.mark, peeks=True)
        try:
            (opened,) = event_loop().call(
                open_all(self.address, (self.port,), hello, target.secret), _OPEN_LIMIT_S
            )
            if isinstance(opened, Opened):
                return Participant(opened, target.me, purpose=target.purpose, secret=target.secret).peek(kind)
        except (ConnectionLostError, RejectedError):
            pass
        return None


class Connector:
    """Tries until node 0 is reached. ``pause(seconds)`` waits, and may raise to give up.

    ``log`` receives the current obstacle every few seconds. ``host`` and ``port`` are where node 0 was tried
    last, and ``address`` is where it was reached. ``examine`` is called once node 0 is reached, and returns
    how this node presents itself. ``elsewhere`` are further hosts where it may be. ``obstacle`` returns why
    this node does not join a rendezvous that answers. For ``wake`` and ``session`` see Participant.
    """

    def __init__(
        self,
        target: JoinTarget,
        *,
        timeout_s: float,
        pause: Callable[[float], None],
        log: Callable[[ConsoleLine], None],
        examine: Callable[[Fingerprint], Fingerprint] = lambda me: me,
        elsewhere: Sequence[JoinTarget] = (),
        obstacle: Callable[[Found], str] = lambda _found: "",
        wake: Callable[[], None] = lambda: None,
        session: NodeSession | None = None,
    ) -> None:
        self._session = session or NodeSession()
        self._usual = self._target = target
        self._elsewhere = elsewhere
        self._obstacle = obstacle
        self._wake = wake
        self.port = target.ports[0]
        self.address = target.host
        self._timeout_s = timeout_s
        self._pause = pause
        self._log = log
        self._examine = examine
        self._began = time.monotonic()
        self._deadline = self._began + timeout_s
        self._reported_at = self._began - _LOG_EVERY_S + _LOG_FIRST_S

    @property
    def host(self) -> str:
        """See ``port``."""
        return self._target.host

    def join(self) -> Participant:
        """Reach the rendezvous and join it. Raises NeverReachedError and RejectedError."""
        doubted_since: float | None = None
        while True:
            now = time.monotonic()
            self._target = self._usual
            try:
                participant, obstacle = self.find()
                if participant is not None:
                    participant.join()
                    return participant
            except ConnectionLostError as error:
                obstacle = error.args[0]
            except RejectedError as error:
                doubted_since = doubted_since or now
                if error.rejection.kind not in _DOUBTED or now - doubted_since >= _DOUBTED_FOR_S:
                    raise
                obstacle = error.args[0]
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
            if now - self._reported_at >= _LOG_EVERY_S:
                self._reported_at = now
                text = Phrase(
                    "waited {waited:.0f} s for node 0 so far: {obstacle}",
                    waited=now - self._began,
                    obstacle=obstacle,
                )
                self._log(ConsoleLine("INFO", text, "rendezvous-waiting"))
            self._pause(min(_FIRST_RETRY_S + (now - self._began) / 8, _RETRY_S))

    def find(self) -> tuple[Participant | None, str]:
        """Try once; return a participant that can join, or None and the obstacle.

        Raises RejectedError and ConnectionLostError.
        """
        target = self._target
        opened, obstacle = self._open()
        if opened is None:
            return None, obstacle
        self.port = opened.port
        obstacle = self._obstacle(Found(target, opened.address, opened.port, opened.welcome))
        if obstacle:
            event_loop().post(opened.writer.close)
            return None, obstacle
        # Now, not before: the node 0 that was reached first may have been that of the last start.
        me = replace(self._examine(target.me), wall_clock_s=time.time())
        participant = Participant(
            opened,
            me,
            purpose=target.purpose,
            secret=target.secret,
            spare=target.spare,
            details=target.details,
            wake=self._wake,
            session=self._session,
        )
        return participant, ""

    def probe(self) -> Found | None:
        """Return the rendezvous that answers, which is not joined; None if none does. Never raises."""
        with suppress(ConnectionLostError):
            opened, _ = self._open()
            if opened is not None:
                event_loop().post(opened.writer.close)
                return Found(self._target, opened.address, opened.port, opened.welcome)
        return None

    def _join_elsewhere(self) -> Participant | None:
        for target in self._elsewhere:
            self._target = target
            # Whatever is wrong there, no more than a stranger's rendezvous, is no reason to end.
            with suppress(ConnectionLostError, RejectedError):
                participant, _ = self.find()
                if participant is not None:
                    participant.join()
                    return participant
        self._target = self._usual
        return None

    def _open(self) -> tuple[Opened | None, str]:
        """Connect to the first address and port where this job's rendezvous answers."""
        target = self._target
        names = resolve(target.host, CONNECT_LIMIT_S)
        obstacle = Reach(names.step).describe(target.host, target.ports[0])
        hello = hello_of(target.me, target.purpose, target.secret, target.mark)
        addresses = [address for _, address in names.found]
        known = _reached.get(target.host)
        for address in dict.fromkeys((*addresses, known) if known else addresses):
            tried = event_loop().call(open_all(address, target.ports, hello, target.secret), _OPEN_LIMIT_S)
            ours = [one for one in tried if isinstance(one, Opened) and one.welcome.mark == target.mark]
            for other in tried:
                if isinstance(other, Opened) and other not in ours[:1]:
                    event_loop().post(other.writer.close)
            if ours:
                self.address = _reached[target.host] = address
                return ours[0], ""
            if address == known and addresses:
                continue  # the obstacle of the name is reported
            obstacle = self._describe(address, tried)
        return None, obstacle

    def _describe(self, address: str, tried: Sequence[Opened | Unopened]) -> str:
        """Describe the obstacle at the ports of an address."""
        host = self._target.host
        for one in tried:
            where = f"{host}:{one.port} ({address})"
            if isinstance(one, Unopened) and one.step is ReachStep.OPEN:
                problem = Phrase("no rendezvous answers there ({answer})", answer=one.answer)
                return Phrase("{where} accepts connections, but {obstacle}", where=where, obstacle=problem)
            if isinstance(one, Opened):
                return Phrase("another job's rendezvous is at {where}", where=where)
        first = tried[0]
        assert isinstance(first, Unopened)
        return Reach(first.step, address).describe(host, first.port)


__all__ = ["Connector", "Found", "JoinTarget", "NeverReachedError", "RejectedError"]
