"""Which of several events came first, by the clocks of their logs or by their order in one log."""

from __future__ import annotations

from collections.abc import Mapping

from platform_launch.why.lines.line import YEAR_S
from platform_launch.why.reading.events import Occurrence


def first_of(causes: list[Occurrence]) -> Occurrence:
    """Return what came first in one node's log: by time where all lines tell it, else by their order."""
    if all(event.span.exact for event in causes):
        return min(causes, key=lambda event: event.span.not_before_s or 0.0)
    return causes[0]


def earliest(events: list[Occurrence], offsets: Mapping[int, float]) -> tuple[Occurrence, list[Occurrence]]:
    """Return the first of events of several nodes, and those that may have been first as well.

    Where times do not tell, the most specific one is taken.
    """
    open_ones = [e for e in events if not any(is_before(o, e, offsets) for o in events if o is not e)]
    upwards = -1 if all(event.log == events[0].log for event in events) else 0
    chosen = max(open_ones or events, key=lambda e: (e.signature.specificity, upwards * e.start))
    others = [e for e in open_ones if e is not chosen and e.signature.id != chosen.signature.id]
    return chosen, others


def is_before(
    one: Occurrence, other: Occurrence, offsets: Mapping[int, float], margin_s: float = 0.0
) -> bool:
    """Tell whether one event is known to be earlier than another; half a year's distance is New Year."""
    if one.span.not_after_s is None or other.span.not_before_s is None:
        return False
    ends = one.span.not_after_s - offsets.get(id(one), 0.0)
    begins = other.span.not_before_s - offsets.get(id(other), 0.0)
    distance = (begins - ends + YEAR_S / 2) % YEAR_S - YEAR_S / 2
    return distance > margin_s
