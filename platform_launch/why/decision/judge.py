"""Decides between the events of all logs: what came first, what followed from it, what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from platform_launch.why.answer.answer import unknown, verdict_of, with_oom_kills
from platform_launch.why.answer.verdict import Verdict
from platform_launch.why.decision.candidates import (
    best_consequence,
    best_suspect,
    caught_last,
    ended_alike,
    left_by_itself,
    never_met,
)
from platform_launch.why.decision.order import earliest, first_of
from platform_launch.why.decision.other_events import (
    MOST_OTHERS,
    also,
    earlier_signs,
    folded,
    named,
    success_said,
    survived,
    unordered,
)
from platform_launch.why.decision.other_programs import of_several_programs
from platform_launch.why.decision.root_cause import (
    broken_before,
    cancelled_before,
    crashed_beside,
    ended_before,
    failed_before,
    is_sequel,
    place_told_below,
    standing_behind,
)
from platform_launch.why.decision.title import place_cut_off
from platform_launch.why.decision.unexplained import ended_one, error_before, first_error, heard_before
from platform_launch.why.lines.line import NOWHERE
from platform_launch.why.messages.signatures import Catalogue, SignatureRole, SignatureTrait
from platform_launch.why.note import Note, note
from platform_launch.why.reading.events import NodeEvents, Occurrence, all_events, first_to_end

_CLOSE_LINES = 8


def judge(nodes: Sequence[NodeEvents], catalogue: Catalogue, oom_kills: int | None = None) -> Verdict:
    """Return the verdict over all nodes.

    ``oom_kills`` is how many out-of-memory kills the cgroup counted during the run, None if not known.
    """
    failed = [node_events for node_events in nodes if not node_events.finished]
    if nodes and not failed:
        return Verdict("finished")
    events = all_events(failed)
    leading = [node_events for node_events in failed if not _follows(node_events)] or failed
    chosen, notes = _choose(leading, all_events(leading), catalogue)
    if chosen is not None and chosen.role is SignatureRole.CONSEQUENCE and len(leading) < len(failed):
        # The launcher that spoke first need not be that of the process that failed first.
        leading = [one for one in failed if not _follows(one) or _failed_before(one)]
        chosen, notes = _choose(leading, all_events(leading), catalogue)
    failed = leading
    error = error_before(chosen, failed) if chosen is not None else None
    if chosen is None or error is not None:
        error = error or first_error(failed)
        verdict = unknown(failed, catalogue, error, likely=error is not None and ended_one(error, failed))
    else:
        place_cut_off(chosen, events)
        verdict = verdict_of(chosen, failed, oom_kills, catalogue)
    if verdict.first_error is None:
        notes = [*heard_before(chosen, failed), *notes]
    if verdict.kind != "nothing":
        followed = chosen is None or (error and not chosen.signature.has(SignatureTrait.SILENT))
        others = folded(None, NOWHERE, events) if followed else folded(chosen, verdict.where, events)
        verdict = replace(verdict, consequences=others)
        notes += success_said(failed)
    verdict = verdict.with_notes(notes)
    return with_oom_kills(verdict, oom_kills, catalogue).concluded(catalogue)


def _why_cancelled(chosen: Occurrence, suspects: Sequence[Occurrence]) -> list[Note]:
    """Name what may have made someone cancel the job: what is said above, a mere mention only at the last."""
    if chosen.signature.id != "job_cancelled":
        return []
    above = [e for e in suspects if e.log == chosen.log and e.start < chosen.start]
    said = [e for e in above if not e.mention or (e.count > 1 and chosen.start - e.last <= _CLOSE_LINES)]
    plain = [e for e in said if e.signature.specificity > 1]
    return [note("perhaps", event=named(event)) for event in plain[:MOST_OTHERS]]


def _follows(node_events: NodeEvents) -> bool:
    """Tell whether a node stopped because of another one, which it names."""
    return any(e.signature.id == "other_node_failed" for e in node_events.episode.events.values())


def _failed_before(node_events: NodeEvents) -> bool:
    """Tell whether a node that names another one has a cause of its own from before it was asked to end."""
    events = node_events.episode.events.values()
    asked_at = node_events.asked_at or min(e.start for e in events if e.signature.id == "other_node_failed")
    causes = node_events.episode.of_role(SignatureRole.CAUSE)
    return any(one.start < asked_at and not is_sequel(one, events) for one in causes)


def _choose(
    nodes: Sequence[NodeEvents], events: Sequence[Occurrence], catalogue: Catalogue
) -> tuple[Occurrence | None, list[Note]]:
    """Return the event that answers, and what has to be said beside it."""
    offsets = {id(e): s.clock_offset_s for s in nodes for e in s.episode.events.values()}
    causes = [
        [one for one in s.episode.of_role(SignatureRole.CAUSE) if not is_sequel(one, events)] for s in nodes
    ]
    rank = first_to_end(nodes)
    firsts = [first_of(of_node, rank) for of_node in causes if of_node]
    if firsts:
        first, equals = earliest(firsts, offsets, rank)
        notes = unordered(equals)
        cause = standing_behind(first, events)
        if cause is not first:
            notes = [note("showed-first", event=named(first))]
            if cause.log == first.log and abs(cause.number - first.number) <= _CLOSE_LINES:
                cause.raised = cause.raised or first.raised
                if cause.where == NOWHERE:
                    cause.where = first.where
        elif waited_for := broken_before(first, events) or ended_before(first, nodes, catalogue):
            return waited_for, [note("went-on-until", event=named(first))]
        elif crashed := crashed_beside(first, events):
            return crashed, [note("also", event=named(first))]
        elif failed := failed_before(first, nodes, catalogue):
            return failed, [note("also", event=named(first))]
        elif cancelled := cancelled_before(first, nodes):
            return cancelled, [note("also", event=named(first))]
        cause, programs = of_several_programs(cause, events) if cause is first else (cause, [])
        cause.where = place_told_below(cause, events)
        others = also(cause, first, events) if not programs and (cause is not first or not equals) else []
        notes += earlier_signs(cause, events, offsets)
        return cause, [*notes, *programs, *others, *survived(nodes, cause)]
    if left := caught_last(nodes, catalogue) or left_by_itself(nodes, catalogue):
        return left, []
    chosen = best_consequence(events, offsets)
    suspects = [event for event in events if event.role is SignatureRole.SUSPECT]
    chosen = chosen or best_suspect(suspects, nodes, offsets, catalogue)
    if waited_for := ended_before(chosen, nodes, catalogue):
        return waited_for, []
    if chosen is not None:
        beside = [event for event in events if not is_sequel(event, events)]
        return chosen, also(chosen, chosen, beside) or _why_cancelled(chosen, suspects)
    if not any(node_events.first_error for node_events in nodes) and (met := never_met(nodes, catalogue)):
        return met, []
    if alike := ended_alike(nodes, catalogue):
        return alike, []
    perhaps = [note("perhaps", event=named(event)) for event in suspects[:MOST_OTHERS]]
    return None, [*perhaps, *survived(nodes, None)]
