"""Questions between nodes that the coordinator passes on. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from platform_launch.rendezvous.membership import Member
from platform_launch.rendezvous.protocol import Ask, OpenRequest

_LONGEST_S = 3600.0


@dataclass
class _Open:
    request: OpenRequest
    until: float
    recipients: dict[int, Member]
    waiting: set[int]


class OpenRequests:
    """The questions that wait for answers, each until its deadline."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], _Open] = {}

    def open(self, asker: Member, ask: Ask, members: Iterable[Member], now: float) -> list[Member]:
        """Open a question, or find it if it is open already; return the recipients.

        These are neither the asker nor spares, which know nothing about the job's processes.
        """
        key = asker.number, ask.number
        if key not in self._open:
            nodes = {
                member.number: member
                for member in members
                if member.rank is not None
                and member.number != asker.number
                and (ask.to is None or member.rank in ask.to)
            }
            request = OpenRequest(asker.number, ask.number, ask.body)
            until = now + min(ask.limit_s, _LONGEST_S)
            self._open[key] = _Open(request, until, nodes, set(nodes))
        return list(self._open[key].recipients.values())

    def request(self, asker: Member, number: int) -> OpenRequest:
        """Return a question as it is passed on."""
        return self._open[asker.number, number].request

    def unanswered_by(self, member: Member) -> list[OpenRequest]:
        """Return the questions that a node has not answered and may not have received."""
        return [one.request for one in self._open.values() if member.number in one.waiting]

    def answer(self, member: Member, asker: int, number: int) -> bool:
        """Record an answer; return whether the node was asked and had not answered before."""
        opened = self._open.get((asker, number))
        if opened is None or member.number not in opened.waiting:
            return False
        opened.waiting.discard(member.number)
        return True

    def expire(self, now: float) -> None:
        """Forget questions that are overdue or fully answered."""
        self._open = {key: one for key, one in self._open.items() if now < one.until and one.waiting}

    def forget(self, number: int) -> None:
        """Forget the questions of a node that is gone."""
        self._open = {key: one for key, one in self._open.items() if key[0] != number}
