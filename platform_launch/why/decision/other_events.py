"""Notes about events that did not answer: other causes, what others then did, what the training survived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from platform_launch.why.answer.verdict import Consequence
from platform_launch.why.decision.order import is_before
from platform_launch.why.decision.root_cause import LINES_OF_A_MESSAGE
from platform_launch.why.lines.line import NOWHERE, Location, shown
from platform_launch.why.messages.signatures import SignatureRole, SignatureTrait
from platform_launch.why.note import Note, NoteValue, note
from platform_launch.why.reading.events import MOST_REPEATS, SURVIVED_LINES, NodeEvents, Occurrence

MOST_OTHERS = 3
_NOTABLY_EARLIER_S = 5.0


def named(event: Occurrence) -> Note:
    """Name an event: what, where, and in which line."""
    place = event.where.note
    known = event.signature.patterns or event.raised is None or not event.raised.type
    if known or event.raised is None:
        title: NoteValue = note("cause", cause=event.signature.id, title=shown(event.signature.title))
    else:
        title = shown(event.raised.text)
    found = note("event", title=title, log=shown(event.log), line=event.number)
    return replace(found, id="event-on", values=found.values | {"place": place}) if place.values else found


def earlier_signs(
    chosen: Occurrence, events: Sequence[Occurrence], offsets: Mapping[int, float]
) -> list[Note]:
    """Name a consequence that other nodes show notably earlier than the cause, as their clocks go."""
    earlier = [
        event
        for event in events
        if event.role is SignatureRole.CONSEQUENCE
        and event.where.node != chosen.where.node
        and is_before(event, chosen, offsets, _NOTABLY_EARLIER_S)
    ]
    return [note("consequence-earlier", event=named(e)) for e in earlier[:1]]


def unordered(events: Sequence[Occurrence]) -> list[Note]:
    """Name the events that may have come first as well."""
    return [note("order-unknown", event=named(e)) for e in events[:MOST_OTHERS]]


def also(chosen: Occurrence, first: Occurrence, events: Sequence[Occurrence]) -> list[Note]:
    """Name other causes that the logs hold, and above the answer those that their processes got over.

    Faults come in pairs, and the second one waits for its turn. What fails in preparing a job does not
    end it, and more of that may stand below.
    """
    seen = {chosen.signature.id, first.signature.id}
    unprepared = chosen.signature.has(SignatureTrait.PREPARES)
    others = []
    for event in sorted(events, key=lambda e: -e.signature.specificity):
        may_explain = not event.mention or chosen.signature.id in event.signature.explains
        prepares = event.signature.has(SignatureTrait.PREPARES)
        beside = event.start < first.start or (unprepared and prepares)
        told = event.role is SignatureRole.CAUSE or (may_explain and beside)
        heavy = event.signature.role is SignatureRole.CAUSE or prepares
        strong = told and heavy and event.signature.specificity > 1
        if strong and event.signature.id not in seen and event.signature.patterns:
            seen.add(event.signature.id)
            others.append(note("also", event=named(event)))
    return others[:MOST_OTHERS]


def survived(nodes: Sequence[NodeEvents], chosen: Occurrence | None) -> list[Note]:
    """Say which errors training went on after, the chosen one perhaps among them."""
    count = sum(event.count for node_events in nodes for event in node_events.survived)
    notes = [note("earlier-attempt", event=named(one.left_behind)) for one in nodes if one.left_behind][:1]
    notes += [note("errors-survived", count=count)] if count else []
    if chosen is None:
        return notes
    after = max(s.lines_after for s in nodes if chosen in s.episode.events.values())
    # Of a message that comes thousands of times not every line is read.
    if after > SURVIVED_LINES and chosen.count < MOST_REPEATS:
        notes.append(note("output-follows", count=after))
    return notes


def success_said(nodes: Sequence[NodeEvents]) -> list[Note]:
    """Quote the line at a log's end that calls something a success, though something failed."""
    said = next((one.success_said for one in nodes if one.success_said is not None), None)
    return [note("success-said", log=shown(said.log), line=said.number, text=said.shown)] if said else []


def _is_told_by(chosen: Occurrence, event: Occurrence) -> bool:
    """Tell whether an event is of the answer's kind, or the first line of the message that ends with it."""
    begins = event.log == chosen.log and 0 < chosen.number - event.number <= LINES_OF_A_MESSAGE
    reason = begins and event.count == 1 and event.signature.id in chosen.signature.explains
    return event.signature.id == chosen.signature.id or (
        reason and chosen.role is SignatureRole.CONSEQUENCE and event.where in (NOWHERE, chosen.where)
    )


def folded(
    chosen: Occurrence | None, place: Location, events: Sequence[Occurrence]
) -> tuple[Consequence, ...]:
    """Sum up what happened to others than the process at the answer's place, by number of ranks if named."""
    by_signature: dict[str, list[Occurrence]] = {}
    for event in events:
        if event.role is SignatureRole.CONSEQUENCE and not (chosen and _is_told_by(chosen, event)):
            by_signature.setdefault(event.signature.id, []).append(event)
    folded = []
    for same in by_signature.values():
        signature = same[0].signature
        ranks = {w.rank for e in same for w in e.wheres} - {place.rank}
        if not ranks and place.rank is not None:
            continue  # so that process itself ended
        ranks.discard(None)
        lines = sum(event.count for event in same)
        if ranks:
            one = len(ranks) == 1
            who = "1 other rank" if one else f"{len(ranks)} other ranks"
            did = (signature.folded_one if one else "") or signature.folded
            folded.append(Consequence(signature.id, f"{who} then {did}", len(ranks)))
        else:
            times = f"{lines} line" + ("s" if lines > 1 else "")
            folded.append(Consequence(signature.id, f"others {signature.folded} ({times})", lines, "lines"))
    return tuple(folded)
