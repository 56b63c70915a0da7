"""Decides between the events of all logs: what came first, what followed from it, what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from platform_launch.why.endings import Ending
from platform_launch.why.events import MOST_REPEATS, SURVIVED_LINES, Event, Strand
from platform_launch.why.line import YEAR_S, Where, shown
from platform_launch.why.signatures import Catalogue, Role
from platform_launch.why.verdict import Code, Consequence, Evidence, Verdict

_NOTABLY_EARLIER_S = 5.0
_MOST_OTHERS = 3


def judge(strands: Sequence[Strand], catalogue: Catalogue, oom_kills: int | None = None) -> Verdict:
    """Return the verdict over all nodes.

    ``oom_kills`` is how many out-of-memory kills the cgroup counted during the run, None if not known.
    """
    failed = [strand for strand in strands if not strand.finished]
    if strands and not failed:
        return Verdict("finished")
    events = [event for strand in failed for event in strand.episode.events.values()]
    failed = [strand for strand in failed if not _follows(strand)] or failed
    chosen, notes = _choose(failed, [e for strand in failed for e in strand.episode.events.values()])
    if chosen is None:
        verdict = _unknown(failed, catalogue)
    else:
        verdict = _verdict(chosen, _exit_of(failed, chosen), oom_kills, catalogue)
        verdict = replace(verdict, consequences=_folded(chosen, events))
    return replace(_with_oom_kills(verdict, oom_kills, catalogue), notes=(*verdict.notes, *notes))


def _follows(strand: Strand) -> bool:
    """Tell whether a node stopped because of another one, which it names."""
    return any(e.signature.id == "other_node_failed" for e in strand.episode.events.values())


def _choose(strands: Sequence[Strand], events: Sequence[Event]) -> tuple[Event | None, list[str]]:
    """Return the event that answers, and what has to be said beside it."""
    offsets = {id(e): s.clock_offset_s for s in strands for e in s.episode.events.values()}
    firsts = [_first(s.episode.of_role(Role.CAUSE)) for s in strands if s.episode.of_role(Role.CAUSE)]
    if firsts:
        chosen, notes = _earliest(firsts, offsets)
        return chosen, [*notes, *_earlier_signs(chosen, events, offsets), *_survived(strands, chosen)]
    consequences = [event for event in events if event.role is Role.CONSEQUENCE]
    seen = {event.signature.id for event in consequences}
    suspects = [event for event in events if event.role is Role.SUSPECT]
    explaining = [event for event in suspects if seen.intersection(event.signature.explains)]
    for group in (explaining, consequences):
        if group:
            best = max(event.signature.specificity for event in group)
            return _earliest([e for e in group if e.signature.specificity == best], offsets)[0], []
    clear = any(_is_clear(strand) for strand in strands)
    ended = any(strand.episode.endings for strand in strands)
    if suspects and not clear and not ended:
        return _earliest(suspects, offsets)[0], []
    return None, [f"perhaps: {_named(event)}" for event in suspects[:_MOST_OTHERS]]


def _is_clear(strand: Strand) -> bool:
    """Tell whether a line of its own looks like the failure, not the one that introduces a suspect."""
    error = strand.first_error
    if error is None or not error.clear:
        return False
    suspects = strand.episode.of_role(Role.SUSPECT)
    return all(abs(suspect.start - error.number) > 1 for suspect in suspects)


def _first(causes: list[Event]) -> Event:
    """Return what came first in one node's log: by time where all lines tell it, else by their order."""
    if all(event.span.exact for event in causes):
        return min(causes, key=lambda event: event.span.not_before_s or 0.0)
    return causes[0]


def _earliest(events: list[Event], offsets: dict[int, float]) -> tuple[Event, list[str]]:
    """Return the first of events of several nodes; where times do not tell, the most specific one."""
    open_ones = [e for e in events if not any(_before(o, e, offsets) for o in events if o is not e)]
    chosen = max(open_ones or events, key=lambda event: event.signature.specificity)
    others = [e for e in open_ones if e is not chosen and e.signature.id != chosen.signature.id]
    same_log = all(event.log == chosen.log for event in events) and len(events) > 1
    if same_log and not others:
        return chosen, []
    notes = [f"the logs do not say which came first; also {_named(e)}" for e in others[:_MOST_OTHERS]]
    return chosen, notes


def _before(one: Event, other: Event, offsets: dict[int, float], margin_s: float = 0.0) -> bool:
    """Tell whether one event is known to be earlier than another; half a year's distance is New Year."""
    if one.span.not_after_s is None or other.span.not_before_s is None:
        return False
    ends = one.span.not_after_s - offsets.get(id(one), 0.0)
    begins = other.span.not_before_s - offsets.get(id(other), 0.0)
    distance = (begins - ends + YEAR_S / 2) % YEAR_S - YEAR_S / 2
    return distance > margin_s


def _earlier_signs(chosen: Event, events: Sequence[Event], offsets: dict[int, float]) -> list[str]:
    earlier = [
        event
        for event in events
        if event.role is Role.CONSEQUENCE
        and event.where.node != chosen.where.node
        and _before(event, chosen, offsets, _NOTABLY_EARLIER_S)
    ]
    return [f"earlier by the clocks, and usually a consequence: {_named(e)}" for e in earlier[:1]]


def _survived(strands: Sequence[Strand], chosen: Event) -> list[str]:
    """Say which errors training went on after, the chosen one perhaps among them."""
    count = sum(event.count for strand in strands for event in strand.survived)
    notes = [f"{count} earlier error(s) were followed by more output, so training went on"] if count else []
    after = max(s.lines_after for s in strands if chosen in s.episode.events.values())
    # Of a message that comes thousands of times not every line is read.
    if after > SURVIVED_LINES and chosen.count < MOST_REPEATS:
        notes.append(f"{after} lines of output follow: the process may have survived this")
    return notes


def _exit_of(strands: Sequence[Strand], chosen: Event) -> Ending | None:
    """Return how the process of an event ended: the only first failure that its node's launcher named."""
    for strand in strands:
        if chosen in strand.episode.events.values():
            roots = {
                e.where.rank: e for e in strand.episode.endings if e.is_root and e.where.rank is not None
            }
            return next(iter(roots.values())) if len(roots) == 1 else None
    return None


def _verdict(event: Event, ending: Ending | None, oom_kills: int | None, catalogue: Catalogue) -> Verdict:
    signature, raised = event.signature, event.raised
    if oom_kills is not None and signature.with_oom_kills:
        signature = catalogue[signature.with_oom_kills if oom_kills else signature.without_oom_kills]
    where = event.where
    if ending is not None and event.count == 1 and where.rank is None and where.local_rank is None:
        where = where.filled(Where(rank=ending.where.rank, host=ending.where.host))
    title, code = signature.title, None
    if raised is not None:
        frame = raised.frame
        code = Code(raised.type, raised.message, *((frame.file, frame.line, frame.function) if frame else ()))
        if not signature.patterns:
            title = shown(raised.text)
    others = _processes(event) - 1
    notes = [f"the same on {others} other" + ("s" if others > 1 else "")] if others else []
    if event.ended_as:
        notes.append(f"it ended as {shown(event.ended_as)}")
    kind = event.role.value if event.role in (Role.CAUSE, Role.SUSPECT, Role.CONSEQUENCE) else "unknown"
    return Verdict(
        kind=kind,
        cause=signature.id,
        title=title,
        meaning=signature.meaning,
        fix=signature.fix,
        source=signature.source,
        where=where,
        exception=code,
        evidence=(Evidence(event.log, event.number, event.shown),),
        notes=tuple(notes),
    )


def _processes(event: Event) -> int:
    """Return how many ranks (or nodes, where no rank is named) an event names."""
    ranks = {(w.node, w.pod, w.task, w.rank) for w in event.wheres if w.rank is not None}
    return len(ranks) or len({(w.node, w.pod, w.task) for w in event.wheres})


def _with_oom_kills(verdict: Verdict, oom_kills: int | None, catalogue: Catalogue) -> Verdict:
    """Let the kernel's count answer where the logs hold consequences at best."""
    if not oom_kills or verdict.kind == "cause":
        return verdict
    signature = catalogue["out_of_memory_kill"]
    return replace(
        verdict,
        kind="cause",
        cause=signature.id,
        title=signature.title,
        meaning=signature.meaning,
        fix=signature.fix,
        source=signature.source,
        where=Where(),
        exception=None,
        notes=(f"the cgroup counted {oom_kills} out-of-memory kill(s) during the run",),
    )


def _folded(chosen: Event, events: Sequence[Event]) -> tuple[Consequence, ...]:
    """Sum up what happened to the others, by number of ranks where lines name them."""
    said: dict[str, list[Event]] = {}
    for event in events:
        if event.role is Role.CONSEQUENCE and event.signature.id != chosen.signature.id:
            said.setdefault(event.signature.id, []).append(event)
    folded = []
    for same in said.values():
        signature = same[0].signature
        ranks = {w.rank for e in same for w in e.wheres if w.rank is not None} - {chosen.where.rank}
        lines = sum(event.count for event in same)
        if ranks:
            who = f"{len(ranks)} other rank" + ("s" if len(ranks) > 1 else "")
            folded.append(Consequence(signature.id, f"{who} then {signature.folded}", len(ranks)))
        else:
            times = f"{lines} line" + ("s" if lines > 1 else "")
            folded.append(Consequence(signature.id, f"others {signature.folded} ({times})", lines))
    return tuple(folded)


def _unknown(strands: Sequence[Strand], catalogue: Catalogue) -> Verdict:
    """Say what is known when no signature answers: the first error, and who ended how."""
    errors = [strand.first_error for strand in strands if strand.first_error is not None]
    endings = [e for strand in strands for e in strand.episode.endings if e.is_root]
    summaries = [event for strand in strands for event in strand.episode.of_role(Role.SUMMARY)]
    if not errors and not endings and not summaries:
        return Verdict("nothing")
    notes = []
    if endings:
        ending = max(endings, key=lambda e: e.where.rank is not None)
        place = str(ending.where) or "a process"
        notes.append(f"{place} ended with exit code {ending.exit_code}")
    error = next((error for error in errors if error.clear), errors[0] if errors else None)
    said = error or (summaries[0] if summaries else None)
    first = Evidence(said.log, said.number, said.shown) if said is not None else None
    where = said.where if said is not None else Where()
    meaning, fix = "", ""
    if endings or summaries:
        summary = catalogue["child_failed"]
        meaning, fix = summary.meaning, summary.fix
    return Verdict("unknown", meaning=meaning, fix=fix, where=where, first_error=first, notes=tuple(notes))


def _named(event: Event) -> str:
    place = str(event.where)
    title = event.signature.title if event.signature.patterns or not event.raised else event.raised.text
    return shown(title) + (f" on {place}" if place else "") + f" ({shown(event.log)}:{event.number})"
