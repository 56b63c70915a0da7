"""Everything in the logs that could be the root cause, each with the marks by which it is ranked.

A claim is an event in a log, the end of a process that a launcher or scheduler reports, or an error line that
matches no signature. Its marks state what is known about it and its surroundings; ``weights.py`` gives their
weights.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from platform_launch.why.lines.line import NOWHERE, YEAR_S, Line, Location
from platform_launch.why.messages.signatures import Catalogue, Signature, SignatureRole, SignatureTrait
from platform_launch.why.reading.claims import is_of_the_code
from platform_launch.why.reading.collectives import Collectives
from platform_launch.why.reading.endings import FIRST_OF_SIGNALS, Ending
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
_LINES_ABOVE_AN_END = 20
_LINES_OF_OUTPUT = 60
# C++ names the exception below the line about it, and a program's own message may come after the banner of
# its MPI_Abort.
_LINES_BELOW = {"abort": 4, "mpi_abort": 12}
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


def claims_of(nodes: Sequence[NodeEvents], catalogue: Catalogue) -> list[Claim]:
    """Return all claims of the logs of a launch; the last one says that the logs show no cause."""
    around = _Around(nodes)
    claims = []
    for node in nodes:
        events = (event for event in node.episode.events.values() if event.role is not SignatureRole.SUMMARY)
        claims += [Claim(around.marks_of(event, node), event, node=node) for event in events]
        claims += _errors(node, around)
        claims += _ends(node, around, catalogue)
    claims += _of_all(nodes, catalogue)
    return [*claims, Claim({"nothing": 1})]


def is_envelope(event: Occurrence) -> bool:
    """Return whether an event only says that a process ended, or that others lost it."""
    return event.signature.has(SignatureTrait.ENVELOPE, SignatureTrait.SILENT, SignatureTrait.SUFFERED)


def is_over(warned: Occurrence, end: Occurrence) -> bool:
    """Return whether a hang, a repeated warning, was last reported long before the end."""
    repeats = warned.signature.has(SignatureTrait.WARNS) and warned.log == end.log
    return repeats and end.start - warned.last > _LINES_OF_A_STANDSTILL


def is_sequel_of(cause: Occurrence, event: Occurrence) -> bool:
    """Return whether a cause only says how a process ended to which an event had happened."""
    # A line below that names no process continues the one above it.
    continues = event.start == cause.number + 1 and NOWHERE in (cause.where, event.where)
    same_writer = cause.raised is not None or continues or (cause.where == event.where != NOWHERE)
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
    if reason is other or reason.log != other.log:
        return False
    if 0 < below <= _LINES_OF_A_REASON and SAYS_WHAT.search(reason.shown):
        return True
    if other.signature.id not in reason.signature.explains:
        return False
    together = NOWHERE in (other.where, reason.where) or other.where == reason.where
    continues = 0 < below <= LINES_OF_A_MESSAGE and together
    return continues or (-LINES_OF_A_MESSAGE <= below < 0 and "peer" in reason.details)


def occurrence_at(
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
    """Return whether an event explains another one, by its signature.

    A possible explanation of a cause must be above it, if both are in one log.
    """
    if other.signature.id not in one.signature.explains or is_over(one, other) or one is other:
        return False
    above = one.log != other.log or one.start < other.start
    return above or one.role is not _SUSPECT or other.role is not _CAUSE


def _is_heavy(event: Occurrence) -> bool:
    """Return whether a suspect says clearly that something failed, or names what is missing in all lines
    below.
    """
    return not event.mention or event.signature.has(SignatureTrait.PREPARES, SignatureTrait.WARNS)


class _Around:
    """What the marks need to know about the logs of a launch."""

    def __init__(self, nodes: Sequence[NodeEvents]) -> None:
        self.events = all_events(nodes)
        self.by_id: dict[str, list[Occurrence]] = defaultdict(list)
        self.by_log: dict[str, list[Occurrence]] = defaultdict(list)
        self.explaining: dict[str, list[Occurrence]] = defaultdict(list)
        for event in self.events:
            self.by_id[event.signature.id].append(event)
            self.by_log[event.log].append(event)
            for explained in event.signature.explains:
                self.explaining[explained].append(event)
        for of_log in self.by_log.values():
            of_log.sort(key=lambda event: event.start)
        self.place_in_log = {id(e): n / len(log) for log in self.by_log.values() for n, e in enumerate(log)}
        self.ended_at: dict[str, list[int]] = defaultdict(list)
        self.failed_at: dict[str, list[int]] = defaultdict(list)
        for node in nodes:
            ends = [one for one in node.episode.endings if not one.was_cancelled and one.exit_code > 0]
            self.ended_at[node.log] += [one.line.number for one in ends]
            failed = [one.line.number for one in ends if one.exit_code < FIRST_OF_SIGNALS]
            self.failed_at[node.log] += failed
        self.any_ended = any(one.episode.endings for one in nodes)
        self.suffered: dict[str, list[Occurrence]] = defaultdict(list)
        self.first_cause: dict[int, int] = {}
        for event in sorted(self.events, key=lambda event: event.number):
            if event.role is _CONSEQUENCE:
                self.suffered[event.log].append(event)
        self._node = {id(e): n for n, node in enumerate(nodes) for e in node.episode.events.values()}
        for event in (event for event in self.events if event.role is _CAUSE):
            node_number = self._node[id(event)]
            self.first_cause[node_number] = min(event.start, self.first_cause.get(node_number, event.start))
        self.suffering = {rank for of_log in self.suffered.values() for e in of_log for rank in _ranks(e)}
        self.first_rank = first_to_end(nodes)
        roots = {one.where.local_rank for node in nodes for one in node.episode.endings if one.is_root}
        self.first_local = roots.pop() if len(roots) == 1 else None
        self._offsets = {id(e): n.clock_offset_s for n in nodes for e in n.episode.events.values()}
        times = (e.span.not_after_s for e in self.events)
        self._since = next((time_s for time_s in times if time_s is not None), 0.0)
        self._earliest = self._earliest_by_role()

    def _earliest_by_role(self) -> dict[SignatureRole, list[tuple[float, int]]]:
        """Return, for each role, the latest time of each node's first event, the earliest first."""
        firsts: dict[tuple[SignatureRole, int], float] = {}
        for event in self.events:
            if event.span.not_after_s is not None:
                key, until = (event.role, self._node[id(event)]), self._at(event, event.span.not_after_s)
                firsts[key] = min(until, firsts.get(key, until))
        by_role: dict[SignatureRole, list[tuple[float, int]]] = defaultdict(list)
        for (role, node), until in firsts.items():
            by_role[role].append((until, node))
        return {role: sorted(ends)[:2] for role, ends in by_role.items()}

    def _at(self, event: Occurrence, time_s: float) -> float:
        """Return a time by the clock of node 0; half a year apart means New Year."""
        distance = time_s - self._offsets[id(event)] - self._since
        return (distance + YEAR_S / 2) % YEAR_S - YEAR_S / 2

    def is_later(self, event: Occurrence) -> bool:
        """Return whether another node shows an event of the same role that is known to be earlier."""
        if event.span.not_before_s is None:
            return False
        since = self._at(event, event.span.not_before_s)
        ends = self._earliest.get(event.role, ())
        return any(until < since for until, node in ends if node != self._node[id(event)])

    def _suffered_around(self, event: Occurrence) -> list[Occurrence]:
        """Return what happened to others in the lines around an event."""
        of_log = self.suffered[event.log]
        begin = bisect_left(of_log, event.number - LINES_OF_A_MESSAGE, key=lambda one: one.number)
        end = bisect_right(of_log, event.number + LINES_OF_A_MESSAGE, key=lambda one: one.number)
        return of_log[begin:end]

    def marks_of(self, event: Occurrence, node: NodeEvents) -> Marks:
        """Return the marks of an event."""
        signature, role = event.signature, event.role.value
        follows = [one for one in node.episode.events.values() if one.signature.id == "other_node_failed"]
        marks = {
            role: 1,
            f"specific {role}": signature.specificity * (event.role is not _SUSPECT),
            "envelope": is_envelope(event),
            "suffered": signature.has(SignatureTrait.SUFFERED),
            "only ends what was left": self._ends_what_was_left(event),
            "of a program that several ran": event.is_proof
            and not event.of_one_process
            and event.where.rank is None,
            "below a cancellation": self._is_of_a_cancelled_step(event),
            "unknown exception": signature.id == "python_exception" and not is_of_the_code(event),
            "traceback cut": signature.id == "traceback_cut",
            "place of consequence": self.place_in_log[id(event)] * (event.role is _CONSEQUENCE),
            "later cause": event.role is _CAUSE and self.first_cause[self._node[id(event)]] < event.start,
            "later by the clock": self.is_later(event),
            "lacks what an ended program left": self._lacks(event),
            "of the first to end": self._is_of_first(event),
            "of another rank": self._is_of_another(event),
            "of a node that follows": bool(follows) and event not in follows,
            "sequel": any(is_sequel_of(event, one) for one in self.explaining[signature.id]),
            **self._explanations(event),
        }
        if follows and event.role is _CAUSE and not marks["sequel"]:
            marks["before it was asked to end"] = event.start < (node.stop_requested_at or follows[0].start)
        if event.role is _SUSPECT:
            explains = any(name.startswith("explains ") and value for name, value in marks.items())
            marks |= {} if explains else self._of_suspect(event, node)
        return {name: float(value) for name, value in marks.items() if value}

    def _ends_what_was_left(self, event: Occurrence) -> bool:
        """Return whether an event is the end of the remaining tasks after one had failed by itself."""
        if event.signature.id == "killed":
            begin = event.start - _LINES_OF_A_STANDSTILL
            lost = any(one.signature.has(SignatureTrait.SUFFERED) for one in self.suffered[event.log])
            return not lost and any(begin <= end < event.start for end in self.failed_at[event.log])
        if not event.signature.has(SignatureTrait.ENDS_JOB):
            return False
        # srun says that it ends the others before or after it reports the task that failed.
        by_srun = event.signature.id == "step_task_failed" or (
            event.signature.id == "job_cancelled" and not any(where.host for where in event.wheres)
        )
        return any(by_srun or end < event.start for end in self.ended_at[event.log])

    def _is_of_a_cancelled_step(self, event: Occurrence) -> bool:
        """Return whether an event may only follow from the cancelled step above it.

        Slurm's daemons name the node with it. If a task had failed before, that was the reason.
        """
        if not (event.role is _CONSEQUENCE or (event.raised and event.signature.id == "python_exception")):
            return False
        cancelled = [
            one.start
            for one in self.by_id["job_cancelled"]
            if one.log == event.log and one is not event and any(where.host for where in one.wheres)
        ]
        at = min(cancelled, default=event.start)
        return (
            at < event.start
            and not is_of_the_code(event)
            and not any(e < at for e in self.ended_at[event.log])
        )

    def _lacks(self, event: Occurrence) -> bool:
        """Return whether the missing thing of an event may be the output of a program that ended above it."""
        if event.signature.id not in LEFT_BY_PROGRAMS:
            return False
        ends = [
            *self.ended_at[event.log],
            *(one.number for one in self.by_id["killed"] if one.log == event.log),
        ]
        return any(end < event.start for end in ends)

    def _is_of_first(self, event: Occurrence) -> bool:
        local = {where.local_rank for where in event.wheres} - {None}
        of_local = self.first_rank is None and self.first_local is not None and local == {self.first_local}
        return of_local or (self.first_rank is not None and self.first_rank in _ranks(event))

    def _is_of_another(self, event: Occurrence) -> bool:
        return self.first_rank is not None and bool(_ranks(event)) and self.first_rank not in _ranks(event)

    def _explanations(self, event: Occurrence) -> dict[str, bool]:
        """Return which kinds of events this one explains, and which ones explain it."""
        explained = [o for name in event.signature.explains for o in self.by_id[name] if _explains(event, o)]
        roles = {other.role for other in explained if not is_of_the_code(other)}
        marks = dict[str, bool]()
        if event.role is _SUSPECT:
            marks["explains a cause"] = _is_heavy(event) and _CAUSE in roles
            marks["explains what others suffered"] = _CONSEQUENCE in roles
            marks["explains a suspect"] = _SUSPECT in roles
        elif event.role is _CONSEQUENCE:
            near = self._suffered_around(event)
            marks["is the reason"] = any(is_reason_of(event, other) for other in near)
            marks["has its reason"] = any(is_reason_of(other, event) for other in near)
        behind = (o for o in self.explaining[event.signature.id] if _explains(o, event))
        known = any(o.role is _CAUSE or (o.role is _SUSPECT and _is_heavy(o)) for o in behind)
        marks[f"explained {event.role.value}"] = (
            known and event.role is not _SUSPECT and not is_of_the_code(event)
        )
        return marks

    def _of_suspect(self, event: Occurrence, node: NodeEvents) -> Marks:
        raised = event.raised is not None and bool(event.raised.type) and not event.mention
        at_an_end = any(0 < end - event.number <= _LINES_AT_AN_END for end in self.ended_at[event.log])
        return {
            "raised right above an end": at_an_end and raised,
            "raised suspect": raised,
            "at the log's end": node.lines_read - event.last <= _LINES_AT_AN_END,
            "output below a suspect": min(1.0, (node.lines_read - event.last) / _LINES_OF_OUTPUT),
            "right above a traceback that is cut off": any(
                cut.log == event.log and 0 < cut.start - event.last <= _LINES_OF_AN_ERROR
                for cut in self.by_id["traceback_cut"]
            ),
            "mention": event.mention,
            "vague suspect": event.signature.specificity <= 1 and not (event.raised or event.mention),
            "something ended": self.any_ended and not event.mention,
        }


def _errors(node: NodeEvents, around: _Around) -> list[Claim]:
    """Return the error line of one log that matches no signature, as a claim."""
    error = node.first_error
    if error is None:
        return []
    suffered = around.suffered[error.log]
    silent = [event for event in suffered if event.signature.has(SignatureTrait.SILENT)]
    rank = error.where.rank
    marks = {
        "error": 1,
        "clear error": error.clear,
        "below what others suffered": any(e.start < error.number for e in suffered if e not in silent),
        "above a silent end": any(
            e.start != error.number
            and -_LINES_BELOW.get(e.signature.id, 0) <= e.start - error.number <= _LINES_ABOVE_AN_END
            for e in silent
        ),
        "above what others suffered": any(
            0 < e.start - error.number <= _LINES_OF_A_STANDSTILL for e in suffered
        ),
        "of a rank that did not suffer": rank is not None
        and rank not in around.suffering
        and (bool(suffered) or node.lines_read - error.number <= _LINES_AT_AN_END),
        "of a node that follows": any(
            e.signature.id == "other_node_failed" for e in node.episode.events.values()
        ),
    }
    return [Claim({name: float(value) for name, value in marks.items() if value}, error=error, node=node)]


def _ends(node: NodeEvents, around: _Around, catalogue: Catalogue) -> list[Claim]:
    """Return the ends in one log that launchers and schedulers report without an explanation, as claims."""
    claims = []
    for step in (step for step in node.episode.steps if step.exit_code > 0):
        event = occurrence_at(step.line, catalogue["exited_first"], node, step.places, step.exit_code)
        claims.append(Claim(_marks_of_step(step, node, around), event, node=node))
    roots = [one for one in node.episode.endings if one.is_root and one.where.rank is not None]
    if len({root.where.rank for root in roots}) == 1 and roots[0].exit_code > _OF_AN_EXCEPTION:
        root = roots[0]
        if catalogue.of_exit_code(root.exit_code) is None:
            event = occurrence_at(root.line, catalogue["rank_exited"], node, [root.where], root.exit_code)
            claims.append(Claim({"task ended": 1.0}, event, node=node))
    return claims


def _marks_of_step(step: Ending, node: NodeEvents, around: _Around) -> Marks:
    at = step.line.number
    suffered = [event for event in around.by_log[node.log] if event.role is _CONSEQUENCE]
    lost = [event.start - at for event in suffered if event.signature.has(SignatureTrait.SUFFERED)]
    ended = [event for event in suffered if event.signature.has(SignatureTrait.ENDS_JOB)]
    own = {place.task for place in step.places} | {place.rank for place in step.places}
    marks = {
        "task ended": True,
        "task suffered": bool((own - {None}) & around.suffering),
        "others suffered in other logs": bool(around.suffering) and not suffered,
        "others suffered above": any(distance < 0 for distance in lost),
        "reported late by the scheduler": _is_reported_late(step, node, suffered),
        "others suffered soon": any(0 < distance <= _LINES_OF_A_STANDSTILL for distance in lost),
        "job ended below": any(event.start > at for event in ended),
    }
    return {name: 1.0 for name, value in marks.items() if value}


def _is_reported_late(step: Ending, node: NodeEvents, suffered: Sequence[Occurrence]) -> bool:
    """Return whether a task ended with a code of its own, and the others lost it only just above.

    If they had waited for it in a collective for long, the task was involved.
    """
    above = [e for e in suffered if e.start < step.line.number and e.signature.has(SignatureTrait.SUFFERED)]
    close = all(step.line.number - event.start <= _LINES_OF_A_STANDSTILL for event in above)
    named = all((where.rank, where.host) != (None, None) for event in above for where in event.wheres)
    waited = any(event.signature.has(SignatureTrait.WAITED) for event in above)
    own = step.exit_code > _OF_AN_EXCEPTION and step is node.episode.steps[0]
    return bool(above) and own and close and named and not waited


def _of_all(nodes: Sequence[NodeEvents], catalogue: Catalogue) -> list[Claim]:
    """Return what only all ends together show, and what the roll call at the start shows, as claims."""
    claims = []
    endings = [(node, one) for node in nodes for one in node.episode.endings if not one.by_scheduler]
    codes = {one.exit_code for _, one in endings}
    alike = catalogue.of_exit_code(codes.pop()) if len(codes) == 1 else None
    if alike is not None and not any(one.is_root for _, one in endings):
        node, first = endings[0]
        event = occurrence_at(first.line, alike, node, [one.where for _, one in endings])
        claims.append(Claim({"task ended": 1.0}, event, node=node))
    table = Collectives()
    for node in nodes:
        table.merge(node.collectives)
    called = [(node, met) for node in nodes if (met := node.collectives.members_line) is not None]
    # Only rank 0 reports that all came; without its log that is unknown.
    incomplete = 0 in table.members and table.absent()[1] is not None
    if called and incomplete and all(n.lines_read - met.number <= _LINES_OF_A_START for n, met in called):
        node, met = called[0]
        event = occurrence_at(met, catalogue["barrier_absent"], node, ())
        claims.append(Claim({"roll call incomplete": 1.0}, event, node=node))
    return claims
