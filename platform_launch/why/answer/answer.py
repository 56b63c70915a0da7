"""Builds the verdict from the chosen event, or from what is known if there is none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from platform_launch.why.answer.place import (
    common_place,
    ended_alike,
    fill_place,
    others_of,
    shown_elsewhere,
    where_at_home,
    who_ended,
)
from platform_launch.why.answer.retry import retry_of
from platform_launch.why.answer.verdict import Code, Evidence, Verdict
from platform_launch.why.lines.line import NOWHERE, Location, shown
from platform_launch.why.messages.exception_rules import ExceptionRule, filled, rule_of
from platform_launch.why.messages.exceptions import TAKES_AWAY, Raised, operation
from platform_launch.why.messages.own_advice import led_by, own_advice
from platform_launch.why.messages.signatures import Catalogue, SignatureRole, amount
from platform_launch.why.note import Note, note
from platform_launch.why.reading.endings import Ending
from platform_launch.why.reading.events import FirstError, NodeEvents, Occurrence

_MOST_OPEN = 8
_MOST_QUOTED = 8
# A process uses far less than this outside PyTorch (its CUDA context, NCCL's buffers).
_MUCH = 0.2
# The process received a signal there, whatever the line was.
_HANDLES_SIGNALS = re.compile(r"/torch/utils/data/_utils/signal_handling\.py in handler$")
# What a timeout becomes with the table of the ranks.
_BY_THE_TABLE = {
    "ran-another": "collective_mismatch",
    "none-completed": "first_collective",
    "none-completed-of": "first_collective",
}


def verdict_of(
    event: Occurrence, nodes: Sequence[NodeEvents], oom_kills: int | None, catalogue: Catalogue
) -> Verdict:
    """Return the verdict for an event."""
    signature, raised = event.signature, event.raised
    own = next((one for one in nodes if event in one.episode.events.values()), None)
    with_kills, without = signature.with_oom_kills, signature.without_oom_kills
    if with_kills and oom_kills is not None:
        signature = catalogue[with_kills if oom_kills else without]
    elif with_kills and own is not None and own.recorded in (with_kills, without):
        signature = catalogue[own.recorded]  # the launcher there had the kernel's counters
    where, notes = fill_place(event, _exit_of(own) if own is not None else None, nodes)
    role = event.role
    for of_place in notes:
        signature = catalogue[_BY_THE_TABLE.get(of_place.id, signature.id)]
        # Ranks of different groups may be at the same number by chance.
        if of_place.id == "ran-another" and role is not SignatureRole.CAUSE:
            role = SignatureRole.SUSPECT
    held = _held_by_others(event.details)
    message, frames = (raised.whole_message, raised.places) if raised is not None else (event.shown, "")
    signature = catalogue.narrowed(signature, frames, message, held=bool(held))
    if raised is not None and _is_a_race(event, raised):
        signature = catalogue["file_race"]
    title, code = signature.title, None
    rule: ExceptionRule | None = None
    words: dict[str, str] = {}
    if raised is not None:
        unknown_kind = not event.signature.patterns and bool(raised.type)
        code = _code(raised, with_package=unknown_kind)
        if unknown_kind:
            title = shown(f"{raised.type}: {' '.join(raised.whole_message.split())}".removesuffix(": "))
            rule, words = rule_of(raised) or (None, {})
    event.wheres |= ended_alike(event, nodes) | shown_elsewhere(event, nodes)
    if role is event.role and (others := others_of(event, where)) is not None:
        notes.insert(0, note("same-on", others=others))
    if event.handling:
        notes.append(note("raised-handling", exception=shown(event.handling)))
    if event.ended_as:
        notes.append(note("ended-as", exception=shown(event.ended_as)))
    if own is not None and signature.id == "other_node_failed":
        notes += (note("quoted", text=shown(text)) for text in own.quoted[:_MOST_QUOTED])
    named = replace(where, host=None) != NOWHERE or any(n.id == "first-of-several" for n in notes)
    notes += who_ended(where, nodes, process_known=named)
    facts = {name: value for node_events in nodes for name, value in node_events.facts.items()}
    details = {**event.details, **words, **(facts if _is_meeting(signature.id) else {})}
    if held:
        details["others hold"] = held
    if rule:
        templates = (rule.meaning, rule.fix)
    else:
        templates = (signature.meaning, (signature.fix_others_hold if held else "") or signature.fix)
    meaning, fix = (filled(template, details) for template in templates)
    advised = own_advice(message)
    known = retry_of(signature.id)
    everywhere = known.on_several_nodes if known is not None and len(_hosts(event, nodes)) > 1 else ""
    return Verdict(
        kind=role.value,
        retry="no" if everywhere else "unknown" if rule and rule.because else None,
        retry_reason=everywhere or (rule.because if rule else ""),
        cause=signature.id,
        title=title,
        meaning=meaning,
        fix=led_by(advised, fix),
        own_advice=advised,
        advice=rule.id if rule else None,
        templates=templates,
        source=signature.source,
        where=where,
        exception=code,
        evidence=(Evidence(event.log, event.number, event.shown),),
        details=details,
    ).with_notes(notes)


def _is_a_race(event: Occurrence, raised: Raised) -> bool:
    """Return whether several ranks deleted, renamed or created the same thing at once."""
    several = len({where.rank for where in event.wheres} - {None}) > 1
    does = {"file_missing": TAKES_AWAY, "file_exists": frozenset(("create",))}
    return several and operation(raised) in does.get(event.signature.id, ())


def _code(raised: Raised, *, with_package: bool) -> Code:
    """Return what is shown of an exception; with ``with_package`` also the package that raised it."""
    frame, inner = raised.frame, raised.innermost if with_package else None
    if raised.innermost is not None and _HANDLES_SIGNALS.search(raised.innermost.whole_place):
        frame = None
    library = inner if inner is not None and inner.package else None
    code = Code(
        raised.type,
        raised.whole_message,
        package=library.package if library else None,
        innermost=library.place if library else None,
        code="" if inner is None or inner.source.startswith("raise ") else inner.source,
    )
    return replace(code, file=frame.file, line=frame.line, function=frame.function) if frame else code


def unknown(nodes: Sequence[NodeEvents], catalogue: Catalogue, error: FirstError | None) -> Verdict:
    """Return what is known if no signature matches: an error line, and how processes ended."""
    ends = [(node.log, end) for node in nodes for end in node.episode.endings]
    ended = [end for _, end in ends if not end.by_scheduler]
    roots = [(log, end) for log, end in ends if end.is_root and not end.by_scheduler]
    summaries = [event for node in nodes for event in node.episode.of_role(SignatureRole.SUMMARY)]
    if error is None and not ends and not summaries:
        open_logs = [node.log for node in nodes if node.is_open][:_MOST_OPEN]
        return Verdict("nothing").with_notes([note("no-end", log=log) for log in open_logs])
    notes, where = list[Note](), common_place([end.where for end in ended])
    first: Evidence | None = None
    evidence: tuple[Evidence, ...] = ()
    if roots:
        log, end = min(roots, key=lambda one: (one[1].where.rank is None, one[1].time or "9"))
        where, evidence = end.where, (Evidence(log, end.line.number, end.line.shown),)
        notes.append(_ended(where, end.exit_code))
    if error is not None:
        first, evidence = Evidence(error.log, error.number, error.shown), ()
        where = where_at_home(error.where if error.where != NOWHERE else where, nodes)
    elif summaries:
        summary = summaries[0]
        evidence = evidence or (Evidence(summary.log, summary.number, summary.shown),)
        where = where.filled(summary.where)
        if (others := others_of(summary, where)) is not None:
            notes.append(note("same-on", others=others))
    alone = len(ends) == len(roots) == 1
    notes += who_ended(where if alone else NOWHERE, nodes)
    known = catalogue["unknown_error" if error is not None else "child_failed"]
    return Verdict(
        "unknown", meaning=known.meaning, fix=known.fix, where=where, evidence=evidence, first_error=first
    ).with_notes(notes)


def _ended(where: Location, code: int) -> Note:
    """Describe how a process ended, and which one if that is known."""
    place = where.note
    if not place.values:
        return note("some-process-ended", code=code)
    return note("process-ended", place=place, code=code)


def with_oom_kills(verdict: Verdict, oom_kills: int | None, catalogue: Catalogue) -> Verdict:
    """Use the kernel's out-of-memory count as the cause if the logs show at most consequences."""
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
        own_advice="",
        templates=(),
        source=signature.source,
        where=Location(),
        exception=None,
        notes=(),
        noted=(),
    ).with_notes([note("oom-kills", count=oom_kills)])


def _exit_of(node: NodeEvents) -> Ending | None:
    """Return how the event's process ended: the only first failure that the launcher on its node named."""
    roots = [e for e in node.episode.endings if e.is_root]
    by_rank = {e.where.rank: e for e in roots if e.where.rank is not None}
    by_local = {e.where.local_rank: e for e in roots if e.where.local_rank is not None}
    named = by_rank or by_local
    return next(iter(named.values())) if len(named) == 1 else None


def _hosts(event: Occurrence, nodes: Sequence[NodeEvents]) -> set[object]:
    """Return the nodes that show an event: by its lines, or by the nodes on which those ranks ended."""
    ranks = {where.rank for where in event.wheres} - {None}
    ends = [place for n in nodes for ending in n.episode.endings for place in ending.places]
    places = [*event.wheres, *(end for end in ends if ranks & {end.rank, end.task})]
    named = [(w.node, w.pod, (w.host or "").partition(".")[0]) for w in places]
    return {name for name in named if any(part not in (None, "") for part in name)}


def _is_meeting(signature_id: str) -> bool:
    return signature_id.startswith(("master_", "rendezvous_", "store_", "barrier_"))


def _held_by_others(details: Mapping[str, str]) -> str:
    """Return how much GPU memory other processes hold, if it is much and the message gives both figures."""
    capacity, own = amount(details.get("capacity", "")), _own(details)
    if not own or "free" not in details:
        return ""
    rest = capacity - amount(details["free"]) - own
    return f"{rest / 2**30:.1f} GiB" if rest > _MUCH * capacity else ""


def _own(details: Mapping[str, str]) -> float:
    """Return how much the process holds according to the message: in total, or PyTorch's part."""
    if whole := details.get("used") or details.get("reserved"):
        return amount(whole)
    parts = [details.get(name, "") for name in ("allocated", "unallocated")]
    return sum(map(amount, parts)) if all(parts) else 0.0
