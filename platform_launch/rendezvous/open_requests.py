"""What nodes ask of each other, as the coordinator passes it on. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from platform_launch.rendezvous.membership import Member
from platform_launch.rendezvous.protocol import NodeRequests, OpenRequest, Requests

_LONGEST_S = 3600.0


class OpenRequests:
    """The requests that wait for answers, each until its time is up."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], tuple[OpenRequest, float, list[str]]] = {}
        self._last_number: dict[int, int] = {}

    @property
    def entry(self) -> Requests:
        """All of them, as every node reads them."""
        return Requests(tuple(request for request, _, _ in self._open.values()))

    def receive(self, slot: int, current: NodeRequests, members: Iterable[Member], now: float) -> bool:
        """Take what a node asks at the moment; tell whether any of it is new."""
        members, new = list(members), False
        for request in current.requests:
            if request.number <= self._last_number.get(slot, 0):
                continue
            self._last_number[slot], new = request.number, True
            opened = OpenRequest(slot, request.number, request.to, request.body)
            answers = [opened.answer_key(one.slot) for one in members if opened.is_for(one.seat)]
            self._open[slot, request.number] = opened, now + min(request.limit_s, _LONGEST_S), answers
        return new

    def expire(self, now: float) -> list[list[str]]:
        """Forget the requests whose time is up; return of each where its answers lie."""
        over = [key for key, (_, until, _) in self._open.items() if now >= until]
        return [self._open.pop(key)[2] for key in over]

    def forget(self, slot: int) -> None:
        """Count the requests of a slot anew: it is another node's."""
        self._last_number.pop(slot, None)
