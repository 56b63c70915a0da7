"""Chooses the highest claim of all logs, and makes it the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from platform_launch.why.answer.answer import unknown, verdict_of, with_oom_kills
from platform_launch.why.answer.verdict import Ranked, Verdict
from platform_launch.why.lines.line import NOWHERE
from platform_launch.why.messages.signatures import Catalogue, SignatureRole, SignatureTrait
from platform_launch.why.note import Note, note
from platform_launch.why.rank.claims import (
    LEFT_BY_PROGRAMS,
    LINES_OF_A_MESSAGE,
    Claim,
    claims_of,
    is_reason_of,
    is_sequel_of,
    wrote,
)
from platform_launch.why.rank.further_notes import (
    consequences_for_others,
    errors_above,
    further_notes,
    named,
)
from platform_launch.why.rank.weights import score
from platform_launch.why.reading.claims import is_of_the_code
from platform_launch.why.reading.events import FirstError, NodeEvents, Occurrence, all_events

_LINES_OF_A_STACK = 16
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
    claims = ranked(failed, catalogue)
    best, events = claims[0], all_events(failed)
    chosen, notes = best.event, further_notes(claims, failed)
    if chosen is not None:
        notes += _complete(best, events, failed, catalogue)
        verdict = verdict_of(chosen, failed, oom_kills, catalogue)
    else:
        error = _placed(best.error, events) if best.error is not None else _any_error(failed)
        verdict = unknown(failed, catalogue, error)
    if verdict.first_error is None:
        notes = [*errors_above(chosen, failed), *notes]
    if verdict.kind != "nothing":
        verdict = replace(verdict, consequences=consequences_for_others(chosen, verdict.where, events))
    verdict = verdict.with_notes(notes)
    verdict = replace(verdict, ranked=_highest(claims), hosts=_hosts(events))
    return with_oom_kills(verdict, oom_kills, catalogue).concluded(catalogue)


def _highest(claims: Sequence[Claim]) -> tuple[Ranked, ...]:
    told = []
    for claim in claims[:_MOST_RANKED]:
        if claim.event is not None:
            event = claim.event
            told.append(Ranked(event.signature.id, event.log, event.number, event.shown))
        elif claim.error is not None:
            told.append(Ranked("", claim.error.log, claim.error.number, claim.error.shown))
    return tuple(told)


def _hosts(events: Sequence[Occurrence]) -> tuple[str, ...]:
    places = {where for event in events for where in event.wheres}
    named = {name for where in places for name in (where.host, where.pod) if name}
    return tuple(sorted(named))[:_MOST_HOSTS]


def ranked(nodes: Sequence[NodeEvents], catalogue: Catalogue) -> list[Claim]:
    """Return all claims, the highest first; of equal ones the earliest by its log's clock."""

    def began_s(claim: Claim) -> float:
        known = (
            claim.event is not None and claim.event.span.not_before_s is not None and claim.node is not None
        )
        if not known or claim.event is None or claim.node is None:
            return math.inf
        return (claim.event.span.not_before_s or 0.0) - claim.node.clock_offset_s

    return sorted(claims_of(nodes, catalogue), key=lambda claim: (-score(claim.marks), began_s(claim)))


def _complete(
    best: Claim, events: Sequence[Occurrence], nodes: Sequence[NodeEvents], catalogue: Catalogue
) -> list[Note]:
    """Give the chosen event the role that its marks show, and the place from the lines around it."""
    chosen, marks = best.event, best.marks
    assert chosen is not None
    if chosen.role is SignatureRole.SUSPECT:
        caught, raised = chosen.signature.id == "caught_exception", chosen.raised
        if "raised right above an end" in marks:
            ended = caught or (raised is not None and raised.has_frames)
        else:
            ended = {"raised suspect", "at the log's end"} <= marks.keys()
        if caught and "raised suspect" in marks:
            chosen.signature = catalogue["python_exception"]
        if ended or "explains a cause" in marks:
            chosen.role = SignatureRole.CAUSE
    above = [
        e for e in events if e.log == chosen.log and e.start < chosen.start and e.role is SignatureRole.CAUSE
    ]
    for other in (e for e in above if e.signature.id in chosen.signature.explains):
        if not other.signature.exit_codes and chosen.number - other.number <= LINES_OF_A_MESSAGE:
            chosen.raised = chosen.raised or other.raised
            chosen.where = other.where if chosen.where == NOWHERE else chosen.where
    if chosen.role is SignatureRole.CONSEQUENCE:
        for other in events:
            sequel = is_sequel_of(other, chosen) and (chosen.where == NOWHERE or wrote(other, chosen))
            if sequel or is_reason_of(chosen, other):
                chosen.where = chosen.where.filled(other.where)
        for node in (node for node in nodes if "exited_first" in chosen.signature.explains):
            ends = [one for one in node.episode.endings if one.of_its_own and one.exit_code > 0]
            ends = [one for one in ends if 0 < chosen.start - one.line.number <= _LINES_OF_A_STACK]
            near = [one.where for one in ends if node.log == chosen.log]
            chosen.where = chosen.where.filled(near[0]) if near else chosen.where
    others = [other for other in events if _is_of_another_program(other, chosen)]
    if chosen.role is SignatureRole.CAUSE and others:
        chosen.role = SignatureRole.SUSPECT  # nothing shows which program was meant
        return [note("another-program", event=named(max(others, key=lambda event: event.start)))]
    return []


def _is_of_another_program(other: Occurrence, cause: Occurrence) -> bool:
    """Return whether an uncaught exception has a cause of its own, in another program of the same log."""
    if not (cause.is_proof and other.is_proof) or other.log != cause.log or cause.where.rank is not None:
        return False
    first, second = sorted((other, cause), key=lambda event: event.start)
    scripts = {
        event.raised.script.rpartition("/")[2] for event in (first, second) if event.raised is not None
    }
    told = second.signature.patterns or is_of_the_code(second)
    left_out = second.signature.id in LEFT_BY_PROGRAMS
    return len(scripts) > 1 and "" not in scripts and bool(told) and not left_out


def _placed(error: FirstError, events: Sequence[Occurrence]) -> FirstError:
    """Return an error with the place of the silent end beside it, if it names none itself."""
    for end in events:
        beside = error.log == end.log and abs(end.start - error.number) <= _LINES_TOGETHER
        if beside and error.where == NOWHERE and end.signature.has(SignatureTrait.SILENT):
            return replace(error, where=end.where)
    return error


def _any_error(nodes: Sequence[NodeEvents]) -> FirstError | None:
    """Return the first line that reports an error, else the first that looks like one."""
    errors = [node.first_error for node in nodes if node.first_error is not None]
    return next((error for error in errors if error.clear), errors[0] if errors else None)
