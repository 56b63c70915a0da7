"""The title of an issue, which names a failure above a log that was cut off before it says what failed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from platform_launch.why.messages.exceptions import Raised
from platform_launch.why.messages.signatures import SignatureRole
from platform_launch.why.reading.events import Occurrence


def is_title(event: Occurrence) -> bool:
    """Tell whether an event is said in the first line of its log alone, with no traceback to show where."""
    bare = event.raised is None or not event.raised.has_frames
    return event.last == 1 and bare and event.role is not SignatureRole.SUMMARY


def place_cut_off(title: Occurrence, events: Iterable[Occurrence]) -> None:
    """Give what a title says the process and the place in the code of the only traceback below, if cut."""
    if not is_title(title):
        return
    below = [event for event in events if event.log == title.log and event is not title and event.raised]
    if len(below) != 1 or below[0].signature.id != "traceback_cut" or below[0].raised is None:
        return
    cut = below[0]
    raised = title.raised or Raised("", title.shown, below[0].raised.line)
    title.raised = replace(raised, frame=below[0].raised.frame)
    title.where = title.where.filled(cut.where)
