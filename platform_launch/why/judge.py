"""Decides between the events of all logs: what came first, what followed from it, what is not known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from platform_launch.why.endings import Ending
from platform_launch.why.events import MOST_REPEATS, SURVIVED_LINES, Sighting, Strand
from platform_launch.why.line import NOWHERE, YEAR_S, Where, shown
from platform_launch.why.place import fill_place, who_ended
from platform_launch.why.signatures import Catalogue, SignatureRole
from platform_launch.why.verdict import Code, Consequence, Evidence, Verdict

_NOTABLY_EARLIER_S = 5.0
_MOST_OTHERS = 3
_FEW_LINES = 2
_CLOSE_LINES = 8
_VAGUE = 2
# What programs try and do without.
_OFTEN_CAUGHT = frozenset(
    ("missing_module", "import_failed", "library_missing", "extension_abi", "hub_offline")
)
# An exception of these types comes from the code that raised it, whatever else happened to the job.
_OF_THE_CODE = frozenset(
    [
        "ArithmeticError",
        "AssertionError",
        "AttributeError",
        "FileNotFoundError",
        "ImportError",
        "IndentationError",
        "IndexError",
        "KeyError",
        "ModuleNotFoundError",
        "NameError",
        "NotImplementedError",
        "OverflowError",
        "SyntaxError",
        "TypeError",
        "UnboundLocalError",
        "UnicodeDecodeError",
        "ValueError",
        "ZeroDivisionError",
    ]
)
# Ends of a whole job: tasks that ended with an error before it are what it waited for.
_ENDS_OF_JOBS = frozenset(("time_limit", "job_cancelled", "terminated"))


def judge(strands: Sequence[Strand], catalogue: Catalogue, oom_kills: int | None = None) -> Verdict:
    """Return the verdict over all nodes.

    ``oom_kills`` is how many out-of-memory kills the cgroup counted during the run, None if not known.
    """
    failed = [strand for strand in strands if not strand.finished]
    if strands and not failed:
        return Verdict("finished")
    events = _events(failed)
    failed = [strand for strand in failed if not _follows(strand)] or failed
    chosen, notes = _choose(failed, _events(failed), catalogue)
    if chosen is None:
        verdict = _unknown(failed, catalogue)
    else:
        verdict = _verdict(chosen, failed, oom_kills, catalogue)
        verdict = replace(verdict, consequences=_folded(chosen, events))
    verdict = replace(verdict, notes=(*verdict.notes, *notes))
    return _with_oom_kills(verdict, oom_kills, catalogue).concluded(catalogue)


def _events(strands: Sequence[Strand]) -> list[Sighting]:
    return [event for strand in strands for event in strand.episode.events.values()]


def _follows(strand: Strand) -> bool:
    """Tell whether a node stopped because of another one, which it names."""
    return any(e.signature.id == "other_node_failed" for e in strand.episode.events.values())


def _choose(
    strands: Sequence[Strand], events: Sequence[Sighting], catalogue: Catalogue
) -> tuple[Sighting | None, list[str]]:
    """Return the event that answers, and what has to be said beside it."""
    offsets = {id(e): s.clock_offset_s for s in strands for e in s.episode.events.values()}
    firsts = [
        _first(s.episode.of_role(SignatureRole.CAUSE))
        for s in strands
        if s.episode.of_role(SignatureRole.CAUSE)
    ]
    if firsts:
        first, notes = _earliest(firsts, offsets)
        cause = _behind(first, events)
        if cause is not first:
            notes = [f"it showed first as: {_named(first)}"]
            if (
                cause.where == NOWHERE
                and cause.log == first.log
                and abs(cause.start - first.start) <= _CLOSE_LINES
            ):
                cause.where = first.where
        elif waited_for := _waited_for(first, strands, catalogue):
            return waited_for, [f"the others went on until: {_named(first)}"]
        notes += _earlier_signs(cause, events, offsets)
        return cause, [*notes, *_also(cause, first, events, notes), *_survived(strands, cause)]
    if left := _left_by_itself(strands, catalogue):
        return left, []
    chosen = _best_consequence(events, offsets)
    suspects = [event for event in events if event.role is SignatureRole.SUSPECT]
    chosen = chosen or _best_suspect(suspects, strands, offsets, catalogue)
    if waited_for := _waited_for(chosen, strands, catalogue):
        return waited_for, []
    if chosen is not None:
        return chosen, []
    return None, [f"perhaps: {_named(event)}" for event in suspects[:_MOST_OTHERS]]


def _behind(first: Sighting, events: Iterable[Sighting]) -> Sighting:
    """Return what explains the first cause, though written later or elsewhere; else that cause itself."""
    unknown = first.signature.id == "python_exception"
    if unknown and first.raised is not None and first.raised.type.rpartition(".")[2] in _OF_THE_CODE:
        return first
    told_before = [event for event in events if unknown and _was_told(event, first)]
    if told_before:
        return min(told_before, key=lambda event: event.start)
    explaining = [
        event
        for event in events
        if event.role is SignatureRole.CAUSE and first.signature.id in event.signature.explains
    ]
    return max(explaining, key=lambda event: event.signature.specificity, default=first)


def _was_told(event: Sighting, last: Sighting) -> bool:
    """Tell whether an exception was caught and printed, and then ended the process as another one."""
    return (
        event.role is SignatureRole.SUSPECT
        and event.raised is not None
        and event.log == last.log
        and event.start < last.start
        and event.signature.specificity > _VAGUE
        and event.signature.role is SignatureRole.CAUSE
        and not event.mention
        and event.signature.id not in _OFTEN_CAUGHT
    )


def _waited_for(end: Sighting | None, strands: Sequence[Strand], catalogue: Catalogue) -> Sighting | None:
    """Return the first task that ended with an error, where only the end of the job is known beside."""
    if end is not None and end.signature.id not in _ENDS_OF_JOBS:
        return None
    for strand in strands:
        for step in strand.episode.steps:
            if step.exit_code <= 0 or (end is not None and step.line.number > end.start):
                continue
            signature = catalogue["exited_first"]
            if end is None and strand.first_error is not None and strand.first_error.clear:
                continue
            event = Sighting(
                signature, signature.role, strand.log, step.line.number, step.line.number, step.line.shown,
                step.places[0] if step.places else NOWHERE, details={"exit code": str(step.exit_code)},
            )  # fmt: skip
            event.wheres |= set(step.places)
            return event
    return None


def _left_by_itself(strands: Sequence[Strand], catalogue: Catalogue) -> Sighting | None:
    """Return the rank that torchrun saw end first, with a code that no exception gives, and without a word.

    Beside it there are only partners that lost their connections to it.
    """
    for strand in strands:
        roots = [one for one in strand.episode.endings if one.is_root and one.where.rank is not None]
        if len({root.where.rank for root in roots}) != 1 or roots[0].exit_code <= 1:
            continue
        root, signature = roots[0], catalogue["rank_exited"]
        return Sighting(
            signature, SignatureRole.CAUSE, strand.log, root.line.number, root.line.number, root.line.shown,
            root.where, details={"exit code": str(root.exit_code)},
        )  # fmt: skip
    return None


def _best_consequence(events: Sequence[Sighting], offsets: dict[int, float]) -> Sighting | None:
    """Return the consequence that tells most, or the suspect that explains one that was seen."""
    consequences = [event for event in events if event.role is SignatureRole.CONSEQUENCE]
    seen = {event.signature.id for event in consequences}
    suspects = [event for event in events if event.role is SignatureRole.SUSPECT]
    explaining = [event for event in suspects if seen.intersection(event.signature.explains)]
    for group in (explaining, consequences):
        if group:
            best = max(event.signature.specificity for event in group)
            return _earliest([e for e in group if e.signature.specificity == best], offsets)[0]
    return None


def _best_suspect(
    suspects: Sequence[Sighting], strands: Sequence[Strand], offsets: dict[int, float], catalogue: Catalogue
) -> Sighting | None:
    """Return the suspect that answers where there is nothing else."""
    clear = any(_is_clear(strand) for strand in strands)
    ended = any(strand.episode.endings or strand.episode.steps for strand in strands)
    printed = [e for e in suspects if e.raised is not None and e.raised.type and not e.mention]
    last = [e for e in printed if _lines_after(strands, e) <= _FEW_LINES]
    if last or (printed and ended):
        chosen = _earliest(last or printed, offsets)[0]
        if chosen.signature.id == "caught_exception":
            chosen.signature = catalogue["python_exception"]
        chosen.role = SignatureRole.CAUSE if last else SignatureRole.SUSPECT
        return chosen
    unmentioned = [e for e in suspects if not e.mention and e.signature.id != "caught_exception"]
    likely = [e for e in unmentioned if e.signature.specificity >= _VAGUE]
    if likely and ended and not clear:
        return _earliest(likely, offsets)[0]
    if clear or ended:
        return next((e for e in suspects if e.signature.id == "traceback_cut"), None) if not clear else None
    plain = [event for event in suspects if not event.mention]
    return _earliest(plain or list(suspects), offsets)[0] if suspects else None


def _lines_after(strands: Sequence[Strand], event: Sighting) -> int:
    return min(
        (s.lines_read - event.number for s in strands if event in s.episode.events.values()), default=0
    )


def _is_clear(strand: Strand) -> bool:
    """Tell whether a line of its own looks like the failure, not the one that introduces a suspect."""
    error = strand.first_error
    if error is None or not error.clear:
        return False
    suspects = strand.episode.of_role(SignatureRole.SUSPECT)
    return all(abs(suspect.start - error.number) > 1 for suspect in suspects)


def _first(causes: list[Sighting]) -> Sighting:
    """Return what came first in one node's log: by time where all lines tell it, else by their order."""
    if all(event.span.exact for event in causes):
        return min(causes, key=lambda event: event.span.not_before_s or 0.0)
    return causes[0]


def _earliest(events: list[Sighting], offsets: dict[int, float]) -> tuple[Sighting, list[str]]:
    """Return the first of events of several nodes; where times do not tell, the most specific one."""
    open_ones = [e for e in events if not any(_before(o, e, offsets) for o in events if o is not e)]
    upwards = -1 if all(event.log == events[0].log for event in events) else 0
    chosen = max(open_ones or events, key=lambda e: (e.signature.specificity, upwards * e.start))
    others = [e for e in open_ones if e is not chosen and e.signature.id != chosen.signature.id]
    same_log = all(event.log == chosen.log for event in events) and len(events) > 1
    if same_log and not others:
        return chosen, []
    notes = [f"the logs do not say which came first; also {_named(e)}" for e in others[:_MOST_OTHERS]]
    return chosen, notes


def _before(one: Sighting, other: Sighting, offsets: dict[int, float], margin_s: float = 0.0) -> bool:
    """Tell whether one event is known to be earlier than another; half a year's distance is New Year."""
    if one.span.not_after_s is None or other.span.not_before_s is None:
        return False
    ends = one.span.not_after_s - offsets.get(id(one), 0.0)
    begins = other.span.not_before_s - offsets.get(id(other), 0.0)
    distance = (begins - ends + YEAR_S / 2) % YEAR_S - YEAR_S / 2
    return distance > margin_s


def _earlier_signs(chosen: Sighting, events: Sequence[Sighting], offsets: dict[int, float]) -> list[str]:
    earlier = [
        event
        for event in events
        if event.role is SignatureRole.CONSEQUENCE
        and event.where.node != chosen.where.node
        and _before(event, chosen, offsets, _NOTABLY_EARLIER_S)
    ]
    return [f"earlier by the clocks, and usually a consequence: {_named(e)}" for e in earlier[:1]]


def _also(chosen: Sighting, first: Sighting, events: Sequence[Sighting], notes: Sequence[str]) -> list[str]:
    """Name other causes that the logs hold: faults come in pairs, and the second one waits for its turn."""
    if any("do not say" in note for note in notes):
        return []
    seen = {chosen.signature.id, first.signature.id}
    others = []
    for event in sorted(events, key=lambda e: -e.signature.specificity):
        strong = event.role is SignatureRole.CAUSE and event.signature.specificity > 1
        if strong and event.signature.id not in seen and event.signature.patterns:
            seen.add(event.signature.id)
            others.append(f"also in these logs: {_named(event)}")
    return others[:_MOST_OTHERS]


def _survived(strands: Sequence[Strand], chosen: Sighting) -> list[str]:
    """Say which errors training went on after, the chosen one perhaps among them."""
    count = sum(event.count for strand in strands for event in strand.survived)
    notes = [f"{count} earlier error(s) were followed by more output, so training went on"] if count else []
    after = max(s.lines_after for s in strands if chosen in s.episode.events.values())
    # Of a message that comes thousands of times not every line is read.
    if after > SURVIVED_LINES and chosen.count < MOST_REPEATS:
        notes.append(f"{after} lines of output follow: the process may have survived this")
    return notes


def _exit_of(strands: Sequence[Strand], chosen: Sighting) -> Ending | None:
    """Return how the process of an event ended: the only first failure that its node's launcher named."""
    for strand in strands:
        if chosen in strand.episode.events.values():
            roots = {
                e.where.rank: e for e in strand.episode.endings if e.is_root and e.where.rank is not None
            }
            return next(iter(roots.values())) if len(roots) == 1 else None
    return None


def _verdict(
    event: Sighting, strands: Sequence[Strand], oom_kills: int | None, catalogue: Catalogue
) -> Verdict:
    signature, raised = event.signature, event.raised
    if oom_kills is not None and signature.with_oom_kills:
        signature = catalogue[signature.with_oom_kills if oom_kills else signature.without_oom_kills]
    event.where = event.where.filled(_twin(event, strands))
    where, notes = fill_place(event, _exit_of(strands, event), strands)
    title, code = signature.title, None
    if raised is not None:
        frame = raised.frame
        place = (frame.file, frame.line, frame.function) if frame else ()
        code = Code(raised.type, raised.message, *place) if raised.type or frame else None
        if not signature.patterns and raised.type:
            title = shown(raised.text)
    others = _processes(event) - 1
    if others > 0:
        notes.insert(0, f"the same on {others} other" + ("s" if others > 1 else ""))
    if event.ended_as:
        notes.append(f"it ended as {shown(event.ended_as)}")
    notes += who_ended(where, strands)
    kind = (
        event.role.value
        if event.role in (SignatureRole.CAUSE, SignatureRole.SUSPECT, SignatureRole.CONSEQUENCE)
        else "unknown"
    )
    facts = {name: value for strand in strands for name, value in strand.facts.items()}
    details = {
        **event.details,
        **(facts if "peer" not in event.details and _is_meeting(signature.id) else {}),
    }
    everywhere = signature.everywhere if len(_hosts(event, strands)) > 1 else ""
    return Verdict(
        kind=kind,
        retry="no" if everywhere else None,
        retry_reason=everywhere,
        cause=signature.id,
        title=title,
        meaning=signature.meaning,
        fix=signature.fix,
        source=signature.source,
        where=where,
        exception=code,
        evidence=(Evidence(event.log, event.number, event.shown),),
        notes=tuple(notes),
        details=details,
    )


def _twin(event: Sighting, strands: Sequence[Strand]) -> Where:
    """Return the place of the same exception as its own process told it; Ray repeats it in another one."""
    if event.raised is None or event.where != NOWHERE:
        return NOWHERE
    for other in _events(strands):
        same = other.raised is not None and other.raised.text == event.raised.text
        if other is not event and same and other.where != NOWHERE:
            return other.where
    return NOWHERE


def _hosts(event: Sighting, strands: Sequence[Strand]) -> set[object]:
    """Return the nodes that show an event: by its lines, or by where those ranks ended."""
    ranks = {where.rank for where in event.wheres} - {None}
    episodes = [strand.episode for strand in strands]
    ends = [ending.where for episode in episodes for ending in episode.endings]
    ends += [place for episode in episodes for step in episode.steps for place in step.places]
    places = [*event.wheres, *(end for end in ends if ranks & {end.rank, end.task})]
    named = [(w.node, w.pod, (w.host or "").partition(".")[0]) for w in places]
    return {name for name in named if any(part not in (None, "") for part in name)}


def _is_meeting(signature_id: str) -> bool:
    return signature_id.startswith(("master_", "rendezvous_", "store_", "barrier_"))


def _processes(event: Sighting) -> int:
    """Return how many ranks (or nodes, where no rank is named) an event names."""
    ranks = {(w.node, w.pod, w.task, w.rank) for w in event.wheres if w.rank is not None}
    return len(ranks) or len({(w.node, w.pod, w.host, w.task) for w in event.wheres if w != NOWHERE}) or 1


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


def _folded(chosen: Sighting, events: Sequence[Sighting]) -> tuple[Consequence, ...]:
    """Sum up what happened to the others, by number of ranks where lines name them."""
    said: dict[str, list[Sighting]] = {}
    for event in events:
        if event.role is SignatureRole.CONSEQUENCE and event.signature.id != chosen.signature.id:
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
    ended = [(strand.log, e) for strand in strands for e in strand.episode.endings if e.is_root]
    endings = [ending for _, ending in ended]
    steps = [s for strand in strands for s in strand.episode.steps]
    summaries = [event for strand in strands for event in strand.episode.of_role(SignatureRole.SUMMARY)]
    if not errors and not endings and not summaries and not steps:
        return Verdict("nothing")
    notes, where = list[str](), Where()
    if endings:
        ending = max(endings, key=lambda e: e.where.rank is not None)
        where = ending.where
        notes.append(f"{str(where) or 'a process'} ended with exit code {ending.exit_code}")
    error = next((error for error in errors if error.clear), errors[0] if errors else None)
    first: Evidence | None = None
    evidence: tuple[Evidence, ...] = ()
    if error is not None:
        first = Evidence(error.log, error.number, error.shown)
        where = error.where if error.where != Where() else where
    elif endings and not summaries:
        evidence = (Evidence(ended[0][0], endings[0].line.number, endings[0].line.shown),)
    elif summaries:
        evidence = (Evidence(summaries[0].log, summaries[0].number, summaries[0].shown),)
        where = where.filled(summaries[0].where)
    notes += who_ended(where, strands)
    meaning, fix = "", ""
    if endings or summaries or steps:
        summary = catalogue["child_failed"]
        meaning, fix = summary.meaning, summary.fix
    return Verdict(
        "unknown",
        meaning=meaning,
        fix=fix,
        where=where,
        evidence=evidence,
        first_error=first,
        notes=tuple(notes),
    )


def _named(event: Sighting) -> str:
    place = str(event.where)
    known = event.signature.patterns or event.raised is None or not event.raised.type
    title = event.signature.title if known or event.raised is None else event.raised.text
    return shown(title) + (f" on {place}" if place else "") + f" ({shown(event.log)}:{event.number})"
