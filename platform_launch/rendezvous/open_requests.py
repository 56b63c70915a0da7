"""What nodes ask of each other, as the coordinator passes it on. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from platform_launch.rendezvous.membership import Member
from platform_launch.rendezvous.protocol import NodeRequests, OpenRequest, Requests

_LONGEST_S = 3600.0


class OpenRequests:
    """The requests that wait for answers, each until its time is up."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], tuple[OpenRequest, float]] = {}
        self._last_number: dict[int, int] = {}

    @property
    def entry(self) -> Requests:
        """All of them, as every node reads them."""
        return Requests(tuple(request for request, _ in self._open.values()))

    def receive(self, slot: int, asked: NodeRequests, members: Iterable[Member], now: float) -> bool:
        """Take what a node asks at the moment; tell whether any of it is new."""
        members, new = list(members), False
        for request in asked.requests:
            if request.number <= self._last_number.get(slot, 0):
                continue
            self._last_number[slot], new = request.number, True
            to = tuple(
                member.seat
                for member in members
                if member.slot != slot
                and member.rank is not None  # spares have nothing to say of the training
                and (request.to is None or member.rank in request.to)
            )
            opened = OpenRequest(slot, request.number, to, request.body)
            self._open[slot, request.number] = opened, now + min(request.limit_s, _LONGEST_S)
        return new

    def expire(self, now: float) -> list[OpenRequest]:
        """Forget the requests whose time is up, and return them."""
        over = [key for key, (_, until) in self._open.items() if now >= until]
        return [self._open.pop(key)[0] for key in over]

    def forget(self, slot: int) -> None:
        """Count the requests of a slot anew: it is another node's."""
        self._last_number.pop(slot, None)
