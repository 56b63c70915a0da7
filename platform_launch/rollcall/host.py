"""Node 0 at the roll call: receives the nodes, says who is absent, and pronounces the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from platform_launch.errors import NodesAbsentError, NodesDisagreeError, TopologyError
from platform_launch.rollcall import store as place
from platform_launch.rollcall import verdict
from platform_launch.rollcall.absence import absent_ranks, describe, looks_like_processes
from platform_launch.rollcall.fingerprint import Fingerprint
from platform_launch.rollcall.pulse import Pulse
from platform_launch.rollcall.store import State, Store

_SAY_FIRST_S = 2.0
_SAY_EVERY_S = 5.0
# Looked at less often than guests beat (once a second), so that a beat seen at one look is of that moment.
_LISTEN_EVERY_S = 0.5
# A training must not start with a node that may be dead already.
_DOUBTED_AFTER_S = 2.5
# One that was silent for this long has died or lost its link.
_REPLACED_AFTER_S = 4.0

CORRECT_MASTER_ADDR = "set MASTER_ADDR to the name or address of node 0"


class Host:
    """Holds the roll call. Call :meth:`step` often; it never waits.

    ``state`` is what was published last; ``present`` maps rank to fingerprint. ``master_addr_problem`` says
    why others may look for node 0 elsewhere, if that is so; it is told when they do not come.
    """

    def __init__(
        self,
        store: Store,
        me: Fingerprint,
        *,
        timeout_s: float,
        node_timeout_s: float,
        say: Callable[[str, str], None],
    ) -> None:
        self._store = store
        self._me = me
        self._timeout_s = timeout_s
        self._node_timeout_s = node_timeout_s
        self._say = say
        self._read = 0  # tickets handed out that are known here
        self._unread: list[int] = []
        self._rivals: dict[int, Fingerprint] = {}  # newcomers with a rank that is taken, by ticket
        self._turned_away: dict[str, str] = {}
        self.master_addr_problem = ""
        self._last_seen: dict[int, float] = {}
        self._time_is_up = False
        self._pulse: Pulse[int] = Pulse(longest_look_s=2.0)
        self._began = self._looked = time.monotonic()
        self._said = self._began - _SAY_EVERY_S + _SAY_FIRST_S
        self.tickets: dict[int, int] = {}
        self.present: dict[int, Fingerprint] = {}
        self.clock_offsets_s: dict[int, float] = {}
        self.state = State("waiting")
        self._publish(self.state)
        store.set(place.HOST, me.identity)

    def step(self) -> State:
        """Receive who came, miss who went, and return the state of the meeting."""
        if self.state.phase != "waiting":
            return self.state
        now = time.monotonic()
        self._receive()
        if now - self._looked >= _LISTEN_EVERY_S:
            self._listen(now)
        if self.state.phase == "waiting":
            absent = absent_ranks(self.present, self._me.nnodes)
            if absent:
                self._wait_for(absent, now)
            elif not self._rivals and not self._pulse.silent_for(_DOUBTED_AFTER_S):
                self._pronounce()
        return self.state

    def all_left(self, *, hurried: bool) -> bool:
        """Tell whether all have heard a refusal, also those that may still come, unless time is up."""
        came = self._store.add(place.ARRIVALS, 0)
        if came < self._me.nnodes and not hurried and not self._time_is_up:
            return False
        return place.has_all(self._store, [f"left/{ticket}" for ticket in range(came)])

    def refuse(self, exit_code: int, reasons: tuple[str, ...], hint: str) -> None:
        """End the roll call: everyone leaves with this code."""
        self._publish(replace(self.state, phase="refused", exit_code=exit_code, reasons=reasons, hint=hint))

    def _receive(self) -> None:
        came = self._store.add(place.ARRIVALS, 0)
        self._unread.extend(range(self._read, came))
        self._read = came
        # A guest takes its ticket a moment before it leaves its fingerprint.
        keys = [f"arrival/{ticket}" for ticket in self._unread]
        if keys and not self._store.check(keys):
            keys = [key for key in keys if self._store.check([key])]
        if not keys:
            return
        for key, text in zip(keys, self._store.multi_get(keys), strict=True):
            ticket = int(key.removeprefix("arrival/"))
            self._unread.remove(ticket)
            try:
                self._admit(ticket, Fingerprint.from_json(text))
            except ValueError as error:
                self.refuse(
                    NodesDisagreeError.exit_code,
                    (f"a node came with another version of this launcher: {error}",),
                    "give every node the same image",
                )

    def _admit(self, ticket: int, guest: Fingerprint) -> None:
        rank, known = guest.node_rank, self.present.get(guest.node_rank)
        if guest.job_id and self._me.job_id and guest.job_id != self._me.job_id:
            self._turn_away(ticket, guest)
        elif guest.refusal:
            reason = f"node {rank}, {guest.place}, cannot start: {guest.refusal}"
            self.refuse(guest.refusal_code, (reason,), f"look at the output of node {rank}")
        elif rank >= self._me.nnodes:
            self.refuse(
                TopologyError.exit_code,
                (_out_of_range(guest, self._me),),
                "give every node the same number of nodes, and ranks from 0",
            )
        elif known is not None and known.identity != guest.identity:
            self._rivals[ticket] = guest
        else:
            self._seat(ticket, guest)

    def _seat(self, ticket: int, guest: Fingerprint) -> None:
        self.tickets[guest.node_rank] = ticket
        self.present[guest.node_rank] = guest
        self.clock_offsets_s[guest.node_rank] = guest.wall_clock_s - time.time()

    def _turn_away(self, ticket: int, guest: Fingerprint) -> None:
        reason = (
            f"{guest.place} belongs to job {guest.job_id!r}, but the meeting at this address is that of job "
            f"{self._me.job_id!r}"
        )
        self._turned_away[str(ticket)] = reason
        self._say("WARN", f"a stranger was turned away: {reason}")
        self._publish(replace(self.state, turned_away=dict(self._turned_away)))

    def _listen(self, now: float) -> None:
        """Read the beats: forget who has gone silent, and decide between two that claim one rank."""
        tickets = [*self.tickets.values(), *self._rivals]
        beats = self._store.multi_get([f"beat/{ticket}" for ticket in tickets]) if tickets else []
        by_ticket = dict(zip(tickets, beats, strict=True))
        self._pulse.observe(by_ticket, now - self._looked)
        self._looked = now
        for ticket, rival in list(self._rivals.items()):
            self._compare(ticket, rival)
        for rank, ticket in list(self.tickets.items()):
            gone = by_ticket.get(ticket) == place.GONE.encode()
            if gone or self._pulse.silent_s(ticket) >= self._node_timeout_s:
                self._last_seen[rank] = now - self._pulse.silent_s(ticket)
                del self.tickets[rank], self.present[rank]

    def _compare(self, ticket: int, rival: Fingerprint) -> None:
        """The newcomer takes the place of one that no longer beats; two that both beat cannot be."""
        rank = rival.node_rank
        seated = self.tickets.get(rank)
        silent_s = self._pulse.silent_s(seated) if seated is not None else float("inf")
        if silent_s >= _REPLACED_AFTER_S:
            del self._rivals[ticket]
            self._seat(ticket, rival)
        elif silent_s == 0.0 and self._store.get(f"beat/{ticket}") != b"0":
            self.refuse(
                TopologyError.exit_code,
                (f"two nodes say they are node {rank}: {self.present[rank].place} and {rival.place}",),
                "every node needs a rank of its own: check what sets RANK (or --node-rank) on these two",
            )

    def _wait_for(self, absent: list[int], now: float) -> None:
        ago = {rank: now - seen for rank, seen in self._last_seen.items()}
        text = describe(absent, self._me.nnodes, ago)
        suspicion = looks_like_processes(self.present, self._me.nnodes)
        if now - self._began >= self._timeout_s:
            self._time_is_up = True
            hint = "look at the absent nodes: still pulling their image, not scheduled, or crashed"
            if suspicion:
                hint = "set WORLD_SIZE to the number of nodes, or pass --nnodes"
            elif self.master_addr_problem:
                hint = CORRECT_MASTER_ADDR
            causes = [cause for cause in (suspicion, self.master_addr_problem) if cause]
            self.refuse(
                TopologyError.exit_code if suspicion else NodesAbsentError.exit_code,
                (f"{text}, after {self._timeout_s:g} s", *causes),
                hint,
            )
            return
        if now - self._said >= _SAY_EVERY_S:
            self._said = now
            self._say("INFO", f"waiting for {now - self._began:.0f} s: {text}")
            if suspicion:
                self._say("WARN", suspicion)
        if text != self.state.text:
            self._publish(replace(self.state, text=text))

    def _pronounce(self) -> None:
        nodes = [self.present[rank] for rank in sorted(self.present)]
        judged = verdict.judge(nodes, self.clock_offsets_s)
        for line in verdict.table(judged.differences):
            self._say("INFO", line)
        reasons = judged.reasons
        if judged.exit_code == NodesDisagreeError.exit_code:
            reasons = (f"the nodes disagree: {'; '.join(reasons)}",)
        self._publish(
            replace(
                self.state,
                phase="refused" if judged.exit_code else "running",
                text=f"all {self._me.nnodes} nodes are here",
                exit_code=judged.exit_code,
                reasons=reasons,
                hint=judged.hint,
                warnings=judged.warnings,
                restarts_used=max(node.restarts_used for node in nodes),
                tickets=tuple(self.tickets[node.node_rank] for node in nodes),
            )
        )

    def _publish(self, state: State) -> None:
        self.state = state
        self._store.set(place.STATE, place.to_json(state))


def _out_of_range(guest: Fingerprint, host: Fingerprint) -> str:
    return (
        f"{guest.place} says it is node {guest.node_rank} of {guest.nnodes}, but node 0 ({host.place}) "
        f"was told of {host.nnodes} nodes"
    )
