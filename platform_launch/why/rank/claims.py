"""Everything in the logs that could be the root cause, each with the marks by which it is ranked.

A claim is an event in a log, the end of a process that a launcher or scheduler reports, or an error line that
matches no signature. Its marks state what is known about it and its surroundings; ``weights.py`` gives their
weights.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from platform_launch.why.lines.line import NOWHERE, YEAR_S, Line, Location
from platform_launch.why.messages.signatures import Catalogue, Signature, SignatureRole, SignatureTrait
from platform_launch.why.reading.claims import is_of_the_code
from platform_launch.why.reading.collectives import Collectives
from platform_launch.why.reading.events import (
    SAYS_WHAT,
    FirstError,
    NodeEvents,
    Occurrence,
    all_events,
    first_to_end,
)

Marks = dict[str, float]

# The message of an exception continues below its first line.
LINES_OF_A_MESSAGE = 8
_LINES_OF_A_REASON = 2
_LINES_AT_AN_END = 2
_LINES_OF_AN_ERROR = 4
_LINES_OF_A_START = 20
# Processes that wait for one that ended print little, and soon.
_LINES_OF_A_STANDSTILL = 50
_LINES_OF_OUTPUT = 60
_OF_AN_EXCEPTION = 1
# What may be missing because the program that creates it had failed.
LEFT_BY_PROGRAMS = frozenset(("checkpoint_missing", "data_empty", "file_missing", "hub_not_found"))
_SUSPECT, _CAUSE, _CONSEQUENCE = SignatureRole.SUSPECT, SignatureRole.CAUSE, SignatureRole.CONSEQUENCE


@dataclass(frozen=True)
class Claim:
    """One possible answer: ``event``, or ``error`` (a line without a signature), or neither."""

    marks: Marks
    event: Occurrence | None = None
    error: FirstError | None = None
    node: NodeEvents | None = None

    @property
    def times_s(self) -> tuple[float | None, float | None]:
        """The bounds of its event's time by the clock of node 0, None if a bound is not known."""
        if self.event is None or self.node is None:
            return None, None
        bounds = self.event.moment.not_before_s, self.event.moment.time_s
        earliest_s, latest_s = (None if one is None else one - self.node.clock_offset_s for one in bounds)
        return earliest_s, latest_s

    def is_after(self, other: Claim) -> bool:
        """Return whether it is known to be later than another one."""
        since_s, until_s = self.times_s[0], other.times_s[1]
        return since_s is not None and until_s is not None and _seconds_between(until_s, since_s) > 0


def claims_of(nodes: Sequence[NodeEvents], catalogue: Catalogue) -> list[Claim]:
    """Return all claims of the logs of a launch, the earliest first.

    The last one says that the logs show no cause.
    """
    around = _Around(nodes)
    claims = []
    for node in nodes:
        events = (event for event in node.episode.events.values() if event.role is not SignatureRole.SUMMARY)
        claims += [Claim(around.marks_of(event, node), event, node=node) for event in events]
        if (error := node.first_error) is not None:
            claims.append(Claim(_marks_of_error(error, around), error=error, node=node))
        claims += _ends(node, around, catalogue)
    claims += _of_all(nodes, catalogue)
    known_s = (claim.times_s[0] for claim in claims)
    first_s = next((time_s for time_s in known_s if time_s is not None), 0.0)

    def order(claim: Claim) -> tuple[float, int]:
        time_s = claim.times_s[0]
        after_s = -math.inf if time_s is None else _seconds_between(first_s, time_s)
        return after_s, claim.event.start if claim.event is not None else 0

    return [*sorted(claims, key=order), Claim({"nothing": 1})]


def _seconds_between(one_s: float, other_s: float) -> float:
    """Return how much later the second of two times of a year is; half a year apart means New Year."""
    return (other_s - one_s + YEAR_S / 2) % YEAR_S - YEAR_S / 2


def is_sequel_of(cause: Occurrence, event: Occurrence) -> bool:
    """Return whether a cause only says how a process ended to which an event had happened."""
    same_writer = cause.raised is not None or cause.where == event.where != NOWHERE
    until = cause.number + LINES_OF_A_MESSAGE if same_writer else cause.start
    return (
        event.role in (_CONSEQUENCE, SignatureRole.SUMMARY)
        and cause.signature.id in event.signature.explains
        and event.log == cause.log
        and (event.start < until or wrote(cause, event))
        and not _are_apart(cause, event)
    )


def is_reason_of(reason: Occurrence, other: Occurrence) -> bool:
    """Return whether a consequence ends another one's message with its reason, or names the peer."""
    below = reason.number - other.number
    says_what = 0 < below <= _LINES_OF_A_REASON and SAYS_WHAT.search(reason.shown) is not None
    completes = abs(below) <= LINES_OF_A_MESSAGE and other.signature.id in reason.signature.explains
    return reason.log == other.log and (says_what or completes)


def _occurrence_at(
    line: Line, signature: Signature, node: NodeEvents, places: Sequence[Location], code: int | None = None
) -> Occurrence:
    """Return what a line says about processes at given places, with their exit code if it has one."""
    event = Occurrence(
        signature, signature.role, node.log,
        line.number, line.number, line.shown,
        places[0] if places else NOWHERE, details={} if code is None else {"exit code": str(code)},
    )  # fmt: skip
    event.wheres |= set(places)
    return event


def wrote(end: Occurrence, event: Occurrence) -> bool:
    """Return whether the ended process wrote the event's line, by Ray's prefix, whose lines come late."""
    return "pid" in end.details and any(f" pid={end.details['pid']}{mark}" in event.shown for mark in "),")


def _are_apart(one: Occurrence, other: Occurrence) -> bool:
    """Return whether two events are known to be of different ranks."""
    ranks = _ranks(one), _ranks(other)
    return bool(ranks[0] and ranks[1]) and ranks[0].isdisjoint(ranks[1])


def _ranks(event: Occurrence) -> set[int]:
    return {where.rank for where in event.wheres if where.rank is not None}


def _explains(one: Occurrence, other: Occurrence) -> bool:
    """Return whether an event explains another one that its signature can explain."""
    warns = one.signature.has(SignatureTrait.WARNS)
    together = one.log == other.log
    if is_of_the_code(other) or (warns and together and other.start - one.last > _LINES_OF_A_STANDSTILL):
        return False  # a hang is over if it was last reported long before
    if one.role is _SUSPECT and other.role is _CAUSE:
        # It must come first, and say clearly that something failed, or what all lines below lack.
        heavy = not one.mention or warns or one.signature.has(SignatureTrait.PREPARES)
        return heavy and (not together or one.start < other.start)
    return True


class _Around:
    """What the marks need to know about the logs of a launch."""

    def __init__(self, nodes: Sequence[NodeEvents]) -> None:
        self.by_id: dict[str, list[Occurrence]] = defaultdict(list)
        self.explaining: dict[str, list[Occurrence]] = defaultdict(list)
        self.suffered: dict[str, list[Occurrence]] = defaultdict(list)
        for event in all_events(nodes):
            self.by_id[event.signature.id].append(event)
            for explained in event.signature.explains:
                self.explaining[explained].append(event)
            if event.role is _CONSEQUENCE:
                self.suffered[event.log].append(event)
        self.suffering = {rank for of_log in self.suffered.values() for e in of_log for rank in _ranks(e)}
        causes = {id(node): node.episode.of_role(_CAUSE) for node in nodes}
        self._first_cause = {node: of_node[0].start for node, of_node in causes.items() if of_node}
        self._ended_at: dict[str, list[int]] = defaultdict(list)
        for node in nodes:
            ends = [one for one in node.episode.endings if not one.was_cancelled and one.exit_code > 0]
            self._ended_at[node.log] += [one.line.number for one in ends]
        self._any_ended = any(one.episode.endings for one in nodes)
        self._first_rank = first_to_end(nodes)
        roots = {one.where.local_rank for node in nodes for one in node.episode.endings if one.is_root}
        self._first_local = roots.pop() if len(roots) == 1 else None

    def marks_of(self, event: Occurrence, node: NodeEvents) -> Marks:
        """Return the marks of an event."""
        signature, role = event.signature, event.role
        ended_above = any(end < event.start for end in self._ended_at[event.log])
        ends_others = signature.id == "killed" or signature.has(SignatureTrait.ENDS_JOB)
        explaining = (one for one in self.explaining[signature.id] if _explains(one, event))
        marks: Marks = {
            role.value: 1,
            "specific": signature.specificity * (role is not _SUSPECT),
            "envelope": signature.has(
                SignatureTrait.ENVELOPE, SignatureTrait.SILENT, SignatureTrait.SUFFERED
            ),
            "only ends what was left": ended_above and ends_others,
            "of a program that several ran": event.is_proof and not event.of_one_process,
            "below a cancellation": role is _CONSEQUENCE and self._is_below("job_cancelled", event),
            "unknown exception": signature.id == "python_exception" and not is_of_the_code(event),
            "later cause": role is _CAUSE and self._first_cause[id(node)] < event.start,
            "lacks what an ended program left": signature.id in LEFT_BY_PROGRAMS
            and (ended_above or self._is_below("killed", event)),
            "ended first": self._ended_first(event),
            "of a node that follows": self._follows(event, node),
            "sequel": any(is_sequel_of(event, one) for one in self.explaining[signature.id]),
            "has its reason": role is _CONSEQUENCE
            and any(is_reason_of(one, event) for one in node.episode.events.values() if one.role is role),
            "explained cause": role is _CAUSE and any(e.role in (_CAUSE, _SUSPECT) for e in explaining),
        }
        if role is _SUSPECT:
            explained = (other for name in signature.explains for other in self.by_id[name])
            roles = {other.role for other in explained if _explains(event, other)}
            marks["explains a cause"] = _CAUSE in roles
            marks["explains what others suffered"] = _CONSEQUENCE in roles
            marks |= {} if roles else self._of_suspect(event, node)
        return {name: float(value) for name, value in marks.items() if value}

    def _is_below(self, signature_id: str, event: Occurrence) -> bool:
        return any(one.log == event.log and one.start < event.start for one in self.by_id[signature_id])

    def _ended_first(self, event: Occurrence) -> int:
        """Return 1 for an event of the process that ended first, -1 for one of others, else 0."""
        ranks = _ranks(event)
        if self._first_rank is not None:
            return 0 if not ranks else 1 if self._first_rank in ranks else -1
        local = {where.local_rank for where in event.wheres} - {None}
        return int(self._first_local is not None and local == {self._first_local})

    def _follows(self, event: Occurrence, node: NodeEvents) -> bool:
        """Return whether an event may only follow from the failure of the node that its log names."""
        named = {one.signature.id for one in node.episode.events.values()} & {"other_node_failed"}
        before = event.role is _CAUSE and event.start < node.stop_requested_at
        return bool(named) and event.signature.id not in named and not before

    def _of_suspect(self, event: Occurrence, node: NodeEvents) -> Marks:
        raised = event.raised is not None and bool(event.raised.type) and not event.mention
        ends = self._ended_at[event.log]
        return {
            "raised suspect": raised,
            "at an end": node.lines_read - event.last <= _LINES_AT_AN_END
            or any(0 < end - event.number <= _LINES_AT_AN_END for end in ends),
            "output below a suspect": min(1.0, (node.lines_read - event.last) / _LINES_OF_OUTPUT),
            "right above a traceback that is cut off": any(
                cut.log == event.log and 0 < cut.start - event.last <= _LINES_OF_AN_ERROR
                for cut in self.by_id["traceback_cut"]
            ),
            "mention": event.mention,
            "vague suspect": event.signature.specificity <= 1 and not (event.raised or event.mention),
            "something ended": self._any_ended and not event.mention,
        }


def _marks_of_error(error: FirstError, around: _Around) -> Marks:
    """Return the marks of an error line that matches no signature."""
    suffered = around.suffered[error.log]
    lost = [e.start - error.number for e in suffered if not e.signature.has(SignatureTrait.SILENT)]
    rank = error.where.rank
    marks = {
        "clear error": error.clear,
        "beside what others suffered": any(distance <= _LINES_OF_A_STANDSTILL for distance in lost),
        "of a rank that did not suffer": error.clear and rank is not None and rank not in around.suffering,
    }
    return {name: float(value) for name, value in marks.items() if value}


def _ends(node: NodeEvents, around: _Around, catalogue: Catalogue) -> list[Claim]:
    """Return the ends in one log that launchers and schedulers report without an explanation, as claims."""
    claims = []
    for step in (step for step in node.episode.steps if step.exit_code > 0):
        event = _occurrence_at(step.line, catalogue["exited_first"], node, step.places, step.exit_code)
        lost = [e for e in around.suffered[node.log] if e.signature.has(SignatureTrait.SUFFERED)]
        distances = [e.start - step.line.number for e in lost]
        own = {place.task for place in step.places} | {place.rank for place in step.places}
        marks = {
            "exit code of its own": step.exit_code > _OF_AN_EXCEPTION,
            "task suffered": bool((own - {None}) & around.suffering),
            "others suffered above": any(distance < 0 for distance in distances),
            "others suffered soon": any(0 < distance <= _LINES_OF_A_STANDSTILL for distance in distances),
        }
        claims.append(Claim({name: 1.0 for name, value in marks.items() if value}, event, node=node))
    roots = [one for one in node.episode.endings if one.is_root and one.where.rank is not None]
    if len({root.where.rank for root in roots}) == 1 and roots[0].exit_code > _OF_AN_EXCEPTION:
        root = roots[0]
        if catalogue.of_exit_code(root.exit_code) is None:
            event = _occurrence_at(root.line, catalogue["rank_exited"], node, [root.where], root.exit_code)
            claims.append(Claim({}, event, node=node))
    return claims


def _of_all(nodes: Sequence[NodeEvents], catalogue: Catalogue) -> list[Claim]:
    """Return what only all ends together show, and what the roll call at the start shows, as claims."""
    claims = []
    endings = [(node, one) for node in nodes for one in node.episode.endings if not one.by_scheduler]
    codes = {one.exit_code for _, one in endings}
    alike = catalogue.of_exit_code(codes.pop()) if len(codes) == 1 else None
    if alike is not None:
        node, first = endings[0]
        event = _occurrence_at(first.line, alike, node, [one.where for _, one in endings])
        claims.append(Claim({}, event, node=node))
    table = Collectives()
    for node in nodes:
        table.merge(node.collectives)
    called = [(node, line) for node in nodes if (line := node.collectives.members_line) is not None]
    # Only rank 0 reports that all came; without its log that is unknown.
    incomplete = 0 in table.members and table.absent()[1] is not None
    if incomplete and all(node.lines_read - line.number <= _LINES_OF_A_START for node, line in called):
        event = _occurrence_at(called[0][1], catalogue["barrier_absent"], called[0][0], ())
        claims.append(Claim({"roll call incomplete": 1}, event, node=called[0][0]))
    return claims
