"""How far the clocks of a job's nodes are apart, from questions and answers that bear times. Pure.

As in NTP (RFC 5905): with the times of a question's departure and arrival, and those of its answer, the
offset is known up to half of the time that both were under way. The quickest exchange tells most.
"""

from __future__ import annotations

from dataclasses import dataclass

from platform_launch.observe.arrivals import ClockOffset

# Clocks that nothing corrects drift by up to this.
_DRIFT = 50e-6
_KEPT_S = 3600.0


@dataclass(frozen=True)
class ClockExchange:
    """When node 0 sent a question, when the other node received it and answered, when the answer was here.

    The first and the last by node 0's clock, the others by the other node's (time.time()).
    """

    sent_s: float
    received_s: float
    answered_s: float
    returned_s: float

    @property
    def offset(self) -> ClockOffset:
        """How far the other clock is ahead."""
        offset_s = ((self.received_s - self.sent_s) + (self.answered_s - self.returned_s)) / 2
        under_way_s = (self.returned_s - self.sent_s) - (self.answered_s - self.received_s)
        return ClockOffset(offset_s, max(under_way_s, 0.0) / 2)


class Clocks:
    """The offsets of all nodes by node rank, each from the exchange that tells most now."""

    def __init__(self) -> None:
        self._best: dict[int, tuple[float, ClockOffset]] = {}

    def note(self, node: int, exchange: ClockExchange) -> None:
        """Take an exchange with a node."""
        now_s, new = exchange.returned_s, exchange.offset
        if node not in self._best or new.error_s <= self._aged(node, now_s).error_s:
            self._best[node] = (now_s, new)

    def note_offset(self, node: int, at_s: float, offset: ClockOffset) -> None:
        """Take an offset that somebody else measured."""
        if node not in self._best or offset.error_s <= self._aged(node, at_s).error_s:
            self._best[node] = (at_s, offset)

    def offsets(self, now_s: float) -> dict[int, ClockOffset]:
        """Return the offset of each node whose clock is known."""
        return {
            node: self._aged(node, now_s) for node, (at_s, _) in self._best.items() if now_s - at_s < _KEPT_S
        }

    def _aged(self, node: int, now_s: float) -> ClockOffset:
        at_s, offset = self._best[node]
        return ClockOffset(offset.offset_s, offset.error_s + max(now_s - at_s, 0.0) * _DRIFT)
