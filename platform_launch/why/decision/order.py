"""Which of several events came first, by the clocks of their logs or by their order in one log."""

from __future__ import annotations

from collections.abc import Mapping

from platform_launch.why.lines.line import YEAR_S
from platform_launch.why.reading.events import Occurrence


def first_of(causes: list[Occurrence], rank: int | None = None) -> Occurrence:
    """Return what came first in one node's log: by time where all lines tell it, else by their order.

    ``rank`` is the one that launchers saw end first: what another one raised stands above it by chance.
    """
    if all(event.span.exact for event in causes):
        return min(causes, key=lambda event: event.span.not_before_s or 0.0)
    first, own = causes[0], [event for event in causes if rank is not None and rank in _ranks(event)]
    others = _ranks(first) - {rank}
    if (
        own
        and others
        and rank not in _ranks(first)
        and own[0].signature.specificity >= first.signature.specificity
    ):
        return own[0]
    return first


def earliest(
    events: list[Occurrence], offsets: Mapping[int, float], rank: int | None = None
) -> tuple[Occurrence, list[Occurrence]]:
    """Return the first of events of several nodes, and those that may have been first as well.

    Where times do not tell, the most specific one is taken; of several the one of ``rank``, which launchers
    saw end first, else the one above which its log's clock had come least far.
    """
    open_ones = [e for e in events if not any(is_before(o, e, offsets) for o in events if o is not e)]
    best = max(event.signature.specificity for event in open_ones or events)
    equal = [event for event in open_ones or events if event.signature.specificity == best]
    chosen = _first_of_equal(equal, offsets, rank)
    others = [e for e in open_ones if e is not chosen and e.signature.id != chosen.signature.id]
    return chosen, others


def _first_of_equal(events: list[Occurrence], offsets: Mapping[int, float], rank: int | None) -> Occurrence:
    if all(event.log == events[0].log for event in events):
        return min(events, key=lambda event: event.start)
    own = [event for event in events if rank is not None and rank in _ranks(event)]
    if len(own) == 1:
        return own[0]
    if any(event.span.not_before_s is None for event in events):
        return events[0]
    return min(events, key=lambda event: (event.span.not_before_s or 0.0) - offsets.get(id(event), 0.0))


def _ranks(event: Occurrence) -> set[int]:
    return {where.rank for where in event.wheres if where.rank is not None}


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
