"""What nodes ask of each other, as the coordinator passes it on. Pure."""

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
    """The questions that wait for answers, each until its time is up."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], _Open] = {}

    def ask(self, asker: Member, ask: Ask, members: Iterable[Member], now: float) -> list[Member]:
        """Open a question, or find it if it was asked before; return who was asked.

        Nobody asks itself. Spares are not asked: they know nothing of the job's processes.
        """
        key = asker.number, ask.number
        if key not in self._open:
            asked = {
                member.number: member
                for member in members
                if member.rank is not None
                and member.number != asker.number
                and (ask.to is None or member.rank in ask.to)
            }
            request = OpenRequest(asker.number, ask.number, ask.body)
            until = now + min(ask.limit_s, _LONGEST_S)
            self._open[key] = _Open(request, until, asked, set(asked))
        return list(self._open[key].recipients.values())

    def request(self, asker: Member, number: int) -> OpenRequest:
        """Return a question as it is passed on."""
        return self._open[asker.number, number].request

    def unanswered_by(self, member: Member) -> list[OpenRequest]:
        """Return what a node was asked and has not answered: it may not have received it."""
        return [one.request for one in self._open.values() if member.number in one.waiting]

    def answer(self, member: Member, asker: int, number: int) -> bool:
        """Tell whether a node was asked this, and has not answered before."""
        opened = self._open.get((asker, number))
        if opened is None or member.number not in opened.waiting:
            return False
        opened.waiting.discard(member.number)
        return True

    def expire(self, now: float) -> None:
        """Forget the questions whose time is up, or that all have answered."""
        self._open = {key: one for key, one in self._open.items() if now < one.until and one.waiting}

    def forget(self, number: int) -> None:
        """Forget the questions of a node that is gone."""
        self._open = {key: one for key, one in self._open.items() if key[0] != number}
