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

_ABOUT_OTHERS = ("showed-first", "order-unknown", "perhaps", "also")
_MOST_OTHERS = 3
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
    """Return the notes about the other claims, and about what the job survived."""
    best, seen = claims[0], set[str]()
    if best.event is not None:
        seen.add(best.event.signature.id)
    by_id: dict[str, list[Note]] = {kind: [] for kind in _ABOUT_OTHERS}
    for claim in claims[1:]:
        event = claim.event
        if event is None or "sequel" in claim.marks or event.signature.id in seen:
            continue
        if (found := _note_about(event, claim, best)) is not None:
            seen.add(event.signature.id)
            by_id[found.id].append(found)
    kept = [one for notes in by_id.values() for one in notes[:_MOST_OTHERS]]
    return [*kept, *_survived(nodes, best.event)]


def _note_about(event: Occurrence, claim: Claim, best: Claim) -> Note | None:
    """Return what another claim's event is to the answer, None if it is not worth a note.

    Faults come in pairs: the second one shows once the first is fixed.
    """
    chosen = best.event
    if chosen is None:
        return note("perhaps", event=named(event)) if best.error is None else None
    is_cause, signature = event.role is SignatureRole.CAUSE, event.signature
    explained, together = signature.id in chosen.signature.explains, event.log == chosen.log
    if is_cause and explained and not (together and event.start > chosen.start):
        return note("showed-first", event=named(event))
    ordered = explained or not claim.marks.keys().isdisjoint(
        ("explained cause", "of a node that follows", "only ends what was left")
    )
    if is_cause and claim.node is not best.node and not ordered and not claim.is_after(best):
        return note("order-unknown", event=named(event))
    near = together and 0 < chosen.start - event.last <= _CLOSE_LINES
    if near and chosen.signature.has(SignatureTrait.ENDS_JOB) and event.mention and event.count > 1:
        # Somebody may have ended the job because of a warning that was repeated until then.
        return note("perhaps", event=named(event))
    counts = is_cause or not event.mention or chosen.signature.id in signature.explains
    heavy = signature.role is SignatureRole.CAUSE and signature.specificity > 1 and signature.patterns
    return note("also", event=named(event)) if counts and heavy else None


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
