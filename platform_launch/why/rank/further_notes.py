"""The notes on the answer: other causes, what happened to others, what the job survived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from platform_launch.why.answer.verdict import Consequence
from platform_launch.why.lines.line import NOWHERE, Location, shown
from platform_launch.why.messages.signatures import SignatureRole, SignatureTrait
from platform_launch.why.note import Note, NoteValue, note
from platform_launch.why.rank.claims import Claim, is_reason_of
from platform_launch.why.reading.error_lines import introduces
from platform_launch.why.reading.events import SURVIVED_LINES, NodeEvents, Occurrence

MOST_OTHERS = 3
_CLOSE_LINES = 8
_LINES_ABOVE = 50
# A program's own message may come below the banner of its MPI_Abort.
_LINES_BELOW = 12
# What may be missing because its writer failed, and a refusal whose reason the site prints above.
_MISSED = frozenset(("file_missing", "slurm_refused"))


def named(event: Occurrence) -> Note:
    """Name an event: what, where and on which line."""
    place, raised = event.where.note, event.raised
    title: NoteValue = note("cause", cause=event.signature.id, title=shown(event.signature.title))
    if raised is not None and raised.type and not event.signature.patterns:
        title = shown(raised.text)
    found = note("event", title=title, log=shown(event.log), line=event.number)
    return replace(found, id="event-on", values=found.values | {"place": place}) if place.values else found


def further_notes(claims: Sequence[Claim], nodes: Sequence[NodeEvents]) -> list[Note]:
    """Return the notes about the other claims, the highest first."""
    chosen = claims[0].event
    others = [one.event for one in claims[1:] if one.event is not None and "sequel" not in one.marks]
    if chosen is None:
        suspects = others if claims[0].error is None else []
        return [*(note("perhaps", event=named(e)) for e in suspects[:MOST_OTHERS]), *_survived(nodes, None)]
    notes, seen = list[Note](), {chosen.signature.id}
    for claim in claims[1:]:
        event = claim.event
        if event is None or event.role is not SignatureRole.CAUSE or "sequel" in claim.marks:
            continue
        unordered = (
            claim.node is not claims[0].node
            and claim.marks.keys().isdisjoint(("explained cause", "of a node that follows"))
            and not claim.is_after(claims[0])
        )
        if event.signature.id in chosen.signature.explains:
            if notes or (event.log == chosen.log and event.start > chosen.start):
                continue
            notes.append(note("showed-first", event=named(event)))
        elif unordered and event.signature.id not in seen:
            notes.append(note("order-unknown", event=named(event)))
        else:
            continue
        seen.add(event.signature.id)
    notes = notes[:MOST_OTHERS]
    if chosen.signature.has(SignatureTrait.ENDS_JOB):
        # Somebody may have ended the job because of a warning that was repeated until then.
        near = (e for e in others if e.log == chosen.log and 0 < chosen.start - e.last <= _CLOSE_LINES)
        notes += [note("perhaps", event=named(event)) for event in near if event.mention and event.count > 1]
    return [*notes, *_also(chosen, others, seen), *_survived(nodes, chosen)]


def _also(chosen: Occurrence, others: Sequence[Occurrence], seen: set[str]) -> list[Note]:
    """Name other causes in the logs, and those that their processes survived.

    Faults come in pairs: the second one shows once the first is fixed.
    """
    notes = []
    for event in sorted(others, key=lambda e: -e.signature.specificity):
        may_explain = not event.mention or chosen.signature.id in event.signature.explains
        counts = event.role is SignatureRole.CAUSE or may_explain
        heavy = event.signature.role is SignatureRole.CAUSE and event.signature.specificity > 1
        if counts and heavy and event.signature.patterns and event.signature.id not in seen:
            seen.add(event.signature.id)
            notes.append(note("also", event=named(event)))
    return notes[:MOST_OTHERS]


def _survived(nodes: Sequence[NodeEvents], chosen: Occurrence | None) -> list[Note]:
    """Note the errors after which the training continued, perhaps with the chosen one."""
    count = sum(event.count for node in nodes for event in node.survived)
    earlier = [one.earlier_cause for one in nodes if one.earlier_cause]
    notes = [note("earlier-attempt", event=named(event)) for event in earlier[:1]]
    notes += [note("errors-survived", count=count)] if count else []
    after = max((n.lines_after for n in nodes if chosen in n.episode.events.values()), default=0)
    return [*notes, note("output-follows", count=after)] if after > SURVIVED_LINES else notes


def errors_above(chosen: Occurrence | None, nodes: Sequence[NodeEvents]) -> list[Note]:
    """Name the line above an answer without a reason: an error, else the last output of a process."""
    if chosen is not None:
        answer, aborts = chosen.signature, chosen.signature.id == "mpi_abort"
        vague = answer.has(SignatureTrait.SUFFERED, SignatureTrait.SILENT, SignatureTrait.ENVELOPE)
        if not vague and answer.id not in _MISSED:
            return []
        for error in (node.first_error for node in nodes if node.first_error is not None):
            near = -_LINES_BELOW <= chosen.start - error.number <= _LINES_ABOVE and error.log == chosen.log
            if near and (aborts or (error.clear and not introduces(error.shown))):
                return [note("error-above", log=shown(error.log), line=error.number, text=error.shown)]
    if chosen is None or chosen.signature.has(SignatureTrait.SILENT):
        words = [node.last_words for node in nodes if node.last_words is not None]
        return [note("last-words", log=shown(w.log), line=w.number, text=w.shown) for w in words[:1]]
    return []


def _is_shown_by(chosen: Occurrence, event: Occurrence) -> bool:
    """Return whether an event is of the answer's kind, or the first line of the message that ends with it."""
    same_process = chosen.role is SignatureRole.CONSEQUENCE and event.where in (NOWHERE, chosen.where)
    return event.signature.id == chosen.signature.id or (same_process and is_reason_of(chosen, event))


def consequences_for_others(
    chosen: Occurrence | None, place: Location, events: Sequence[Occurrence]
) -> tuple[Consequence, ...]:
    """Summarize what happened to processes other than the answer's, by number of ranks if they are named."""
    by_signature: dict[str, list[Occurrence]] = {}
    for event in events:
        if event.role is SignatureRole.CONSEQUENCE and not (chosen and _is_shown_by(chosen, event)):
            by_signature.setdefault(event.signature.id, []).append(event)
    folded = []
    for same in by_signature.values():
        signature = same[0].signature
        ranks = {w.rank for e in same for w in e.wheres} - {place.rank}
        if not ranks and place.rank is not None:
            continue  # so that process itself ended
        ranks.discard(None)
        lines = sum(event.count for event in same)
        count, of = (len(ranks), "ranks") if ranks else (lines, "lines")
        folded.append(Consequence(signature.id, signature.title, count, of))
    return tuple(folded)
