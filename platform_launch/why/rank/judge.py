"""Chooses the highest claim of all logs, and makes it the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from platform_launch.why.answer.answer import unknown, verdict_of, with_oom_kills
from platform_launch.why.answer.verdict import Ranked, Verdict
from platform_launch.why.lines.line import NOWHERE
from platform_launch.why.messages.signatures import Catalogue, SignatureRole, SignatureTrait
from platform_launch.why.note import Note, note
from platform_launch.why.rank.claims import (
    LEFT_BY_PROGRAMS,
    Claim,
    claims_of,
    is_reason_of,
    is_sequel_of,
)
from platform_launch.why.rank.further_notes import (
    consequences_for_others,
    errors_above,
    further_notes,
    named,
)
from platform_launch.why.rank.weights import score
from platform_launch.why.reading.events import FirstError, NodeEvents, Occurrence, all_events

# What `kubectl exec` prints when its command in a pod has ended.
_LINES_TOGETHER = 4
_MOST_RANKED = 6
_MOST_HOSTS = 500


def judge(nodes: Sequence[NodeEvents], catalogue: Catalogue, oom_kills: int | None = None) -> Verdict:
    """Return the verdict over all nodes.

    ``oom_kills`` is how many out-of-memory kills the cgroup counted during the run, None if not known.
    """
    failed = [node for node in nodes if not node.finished]
    if nodes and not failed:
        return Verdict("finished")
    claims = sorted(claims_of(failed, catalogue), key=lambda claim: -score(claim.marks))
    best, events = claims[0], all_events(failed)
    chosen, notes = best.event, further_notes(claims, failed)
    if chosen is not None:
        notes += _complete(best, events, catalogue)
        verdict = verdict_of(chosen, failed, oom_kills, catalogue)
    else:
        error = _placed(best.error, events) if best.error is not None else None
        verdict = unknown(failed, catalogue, error)
    if verdict.first_error is None:
        notes = [*errors_above(chosen, failed), *notes]
    if verdict.kind != "nothing":
        verdict = replace(verdict, consequences=consequences_for_others(chosen, verdict.where, events))
    verdict = verdict.with_notes(notes)
    verdict = replace(verdict, ranked=_highest(claims), hosts=_hosts(events))
    return with_oom_kills(verdict, oom_kills, catalogue).concluded(catalogue)


def _highest(claims: Sequence[Claim]) -> tuple[Ranked, ...]:
    lines = ((claim.event, claim.event or claim.error) for claim in claims[:_MOST_RANKED])
    return tuple(
        Ranked(event.signature.id if event is not None else "", line.log, line.number, line.shown)
        for event, line in lines
        if line is not None
    )


def _hosts(events: Sequence[Occurrence]) -> tuple[str, ...]:
    places = {where for event in events for where in event.wheres}
    named = {name for where in places for name in (where.host, where.pod) if name}
    return tuple(sorted(named))[:_MOST_HOSTS]


def _complete(best: Claim, events: Sequence[Occurrence], catalogue: Catalogue) -> list[Note]:
    """Give the chosen event the role that its marks show, and the place from the lines around it."""
    chosen, marks = best.event, best.marks
    assert chosen is not None
    if chosen.signature.id == "caught_exception" and "raised suspect" in marks:
        chosen.signature = catalogue["python_exception"]
    ended = {"raised suspect", "at an end"} <= marks.keys()
    if ended and best.node is not None and best.node.episode.endings:
        # A message without a traceback may be of another process than the end below it.
        ended = chosen.raised is not None and chosen.raised.has_frames
    if ended or "explains a cause" in marks:
        chosen.role = SignatureRole.CAUSE
    for other in events:
        above = other.log == chosen.log and other.start < chosen.start and other.role is SignatureRole.CAUSE
        if above and other.signature.id in chosen.signature.explains:
            chosen.raised = chosen.raised or other.raised
        if chosen.role is not SignatureRole.CONSEQUENCE:
            continue
        if is_sequel_of(other, chosen) or is_reason_of(chosen, other):
            chosen.where = chosen.where.filled(other.where)
    others = [other for other in events if _is_of_another_program(other, chosen)]
    if chosen.role is SignatureRole.CAUSE and others:
        chosen.role = SignatureRole.SUSPECT  # nothing shows which program was meant
        return [note("another-program", event=named(max(others, key=lambda event: event.start)))]
    return []


def _is_of_another_program(other: Occurrence, cause: Occurrence) -> bool:
    """Return whether an uncaught exception has a cause of its own, in another program of the same log."""
    if not (cause.is_proof and other.is_proof) or other.log != cause.log or cause.where.rank is not None:
        return False
    scripts = {one.raised.script.rpartition("/")[2] for one in (other, cause) if one.raised is not None}
    second = max(other, cause, key=lambda event: event.start)
    return len(scripts) > 1 and "" not in scripts and second.signature.id not in LEFT_BY_PROGRAMS


def _placed(error: FirstError, events: Sequence[Occurrence]) -> FirstError:
    """Return an error with the place of the silent end beside it, if it names none itself."""
    for end in events:
        beside = error.log == end.log and abs(end.start - error.number) <= _LINES_TOGETHER
        if beside and error.where == NOWHERE and end.signature.has(SignatureTrait.SILENT):
            return replace(error, where=end.where)
    return error
