"""Node 0 of a waiting cluster: who is there, who came back, who has gone silent. It never closes.

In the meeting place, beside what ``rollcall.store`` names:

roster             the nodes that hold a place (Roster), written by node 0
edition            a number that grows with every roster
turned away/TICKET why a newcomer gets no place
readiness/TICKET   edition, and what hinders this node, written by the node (Readiness)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from platform_launch.rollcall import store as place
from platform_launch.rollcall.absence import absent_ranks, describe
from platform_launch.rollcall.fingerprint import Fingerprint
from platform_launch.rollcall.pulse import Pulse
from platform_launch.rollcall.store import Store

ROSTER, EDITION = "roster", "edition"

_LISTEN_EVERY_S = 0.5
_SAY_EVERY_S = 10.0
# Nodes beat once a second: one that was silent for this long has lost its place to a newcomer of its rank.
_REPLACED_AFTER_S = 4.0
_SILENT_S = 12.0


@dataclass(frozen=True)
class Roster:
    """Who holds the places: fingerprints in JSON, by rank. ``absent`` is empty when all came."""

    formed_at: str
    guests: tuple[str, ...]
    absent: str

    def to_json(self) -> str:
        """Return the form that is stored."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: bytes) -> Roster:
        """Read :meth:`to_json`."""
        values = json.loads(text)
        return cls(**{**values, "guests": tuple(values["guests"])})


@dataclass(frozen=True)
class Readiness:
    """What a node made of a roster: ``problem`` is empty when keys and files are in place."""

    edition: int
    problem: str = ""

    def to_json(self) -> str:
        """Return the form that is stored."""
        return json.dumps(asdict(self), ensure_ascii=False)


class Register:
    """Call :meth:`step` often; it never waits. ``say(level, text)`` takes lines for the user."""

    def __init__(self, store: Store, me: Fingerprint, say: Callable[[str, str], None]) -> None:
        self._store = store
        self._me = me
        self._say = say
        self._read = 0
        self._unread: list[int] = []
        self._seated: dict[int, int] = {}  # rank → ticket
        self._guests: dict[int, Fingerprint] = {}  # by ticket, rivals too
        self._rivals: list[int] = []
        self._silent: set[int] = set()
        self._ready: set[int] = set()
        self._problems: dict[int, str] = {}
        self._pulse: Pulse[int] = Pulse(longest_look_s=2.0)
        self._looked = self._said = time.monotonic()
        self._formed_at = time.strftime("%Y-%m-%d %H:%M:%S")
        self._told = -1
        self._publish()
        store.set(place.HOST, me.identity)

    @property
    def absent(self) -> str:
        """Who has never come, in words; empty when all came."""
        missing = absent_ranks(self._present(), self._me.nnodes)
        return describe(missing, self._me.nnodes, {}) if missing else ""

    def step(self) -> None:
        """Receive who came, miss who went."""
        now = time.monotonic()
        self._receive()
        if now - self._looked >= _LISTEN_EVERY_S:
            self._listen(now)
        if now - self._said >= _SAY_EVERY_S and self.absent:
            self._said = now
            self._say("INFO", self.absent)
        if not self.absent:
            self._await_readiness()

    def _present(self) -> dict[int, Fingerprint]:
        return {rank: self._guests[ticket] for rank, ticket in self._seated.items()}

    def _receive(self) -> None:
        came = self._store.add(place.ARRIVALS, 0)
        self._unread.extend(range(self._read, came))
        self._read = came
        for ticket in list(self._unread):
            # A guest takes its ticket a moment before it leaves its fingerprint.
            if self._store.check([f"arrival/{ticket}"]):
                self._unread.remove(ticket)
                self._admit(ticket, self._store.get(f"arrival/{ticket}"))

    def _admit(self, ticket: int, text: bytes) -> None:
        try:
            guest = Fingerprint.from_json(text)
        except ValueError as error:
            self._turn_away(ticket, f"it has another version of this launcher: {error}")
            return
        rank, seated = guest.node_rank, self._seated.get(guest.node_rank)
        self._guests[ticket] = guest
        if guest.nnodes != self._me.nnodes or not 0 <= rank < self._me.nnodes:
            self._turn_away(
                ticket,
                f"{guest.place} says it is node {rank} of {guest.nnodes}, but node 0 ({self._me.place}) was "
                f"told of {self._me.nnodes} nodes",
            )
        elif guest.job_id and self._me.job_id and guest.job_id != self._me.job_id:
            self._turn_away(ticket, f"{guest.place} belongs to job {guest.job_id!r}, not {self._me.job_id!r}")
        elif seated is None or self._guests[seated].identity == guest.identity:
            self._seat(ticket)
        else:
            self._rivals.append(ticket)

    def _seat(self, ticket: int) -> None:
        guest = self._guests[ticket]
        before = self._seated.get(guest.node_rank)
        if before is not None and self._guests[before].identity != guest.identity:
            self._say("INFO", f"node {guest.node_rank} is back, started anew on {guest.place}")
        self._seated[guest.node_rank] = ticket
        self._publish()

    def _turn_away(self, ticket: int, reason: str) -> None:
        self._say("WARN", f"a node was turned away: {reason}")
        self._store.set(f"turned away/{ticket}", reason)

    def _listen(self, now: float) -> None:
        tickets = [*self._seated.values(), *self._rivals]
        beats = self._store.multi_get([f"beat/{ticket}" for ticket in tickets]) if tickets else []
        by_ticket = dict(zip(tickets, beats, strict=True))
        self._pulse.observe(by_ticket, now - self._looked)
        self._looked = now
        for ticket in list(self._rivals):
            self._compare(ticket, by_ticket)
        for rank, ticket in self._seated.items():
            self._mind(rank, self._silence(ticket, by_ticket))

    def _silence(self, ticket: int, beats: dict[int, bytes]) -> float:
        gone = beats.get(ticket) == place.GONE.encode()
        return float("inf") if gone else self._pulse.silent_s(ticket)

    def _compare(self, ticket: int, beats: dict[int, bytes]) -> None:
        """A newcomer takes the place of one that is gone; two that both beat cannot be."""
        rank = self._guests[ticket].node_rank
        seated = self._seated[rank]
        silent_s = self._silence(seated, beats)
        if silent_s >= _REPLACED_AFTER_S:
            self._rivals.remove(ticket)
            self._seat(ticket)
        elif silent_s == 0.0 and beats[ticket] != b"0":
            self._rivals.remove(ticket)
            places = f"{self._guests[seated].place} and {self._guests[ticket].place}"
            self._turn_away(ticket, f"two nodes say they are node {rank}: {places}")

    def _mind(self, rank: int, silent_s: float) -> None:
        where = self._guests[self._seated[rank]].place
        if silent_s >= _SILENT_S and rank not in self._silent:
            self._silent.add(rank)
            how = "left" if silent_s == float("inf") else f"has been silent for {silent_s:.0f} s"
            self._say("WARN", f"node {rank} ({where}) {how}")
        elif silent_s == 0.0 and rank in self._silent:
            self._silent.remove(rank)
            self._say("INFO", f"node {rank} ({where}) is heard again")

    def _publish(self) -> None:
        guests = tuple(self._guests[self._seated[rank]].to_json() for rank in sorted(self._seated))
        self._store.set(ROSTER, Roster(self._formed_at, guests, self.absent).to_json())
        self._store.add(EDITION, 1)
        self._ready = set()

    def _await_readiness(self) -> None:
        """Say once for each edition that all nodes can be reached, and what hinders those that cannot."""
        edition = self._store.add(EDITION, 0)
        if self._told == edition:
            return
        for rank in self._seated.keys() - self._ready:
            key = f"readiness/{self._seated[rank]}"
            if self._store.check([key]):
                readiness = Readiness(**json.loads(self._store.get(key)))
                if readiness.edition == edition and not readiness.problem:
                    self._ready.add(rank)
                elif readiness.problem and self._problems.get(rank) != readiness.problem:
                    self._problems[rank] = readiness.problem
                    self._say("ERROR", f"node {rank} ({self._where(rank)}): {readiness.problem}")
        if len(self._ready) == self._me.nnodes:
            self._told = edition
            self._say("SUCCESS", f"all {self._me.nnodes} nodes wait: dist-launch run SCRIPT starts it on all")

    def _where(self, rank: int) -> str:
        return self._guests[self._seated[rank]].place
