"""Collects the events of one log by node, and drops those that its processes survived.

A line with a cause counts as one unless work continued below it, or the first uncaught exception below it has
a cause of its own. Then it is a suspect, like a warning: it may be harmless. A process writes its buffered
output at its end, below its last error; so if the clock shows that work continued until later, or no end is
reported, the line is no answer at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from platform_launch.why.lines.clock import Clock, LineTime
from platform_launch.why.lines.line import Line, Location, parse
from platform_launch.why.lines.prefixes import Prefixes
from platform_launch.why.lines.scan import Scanner
from platform_launch.why.messages.exceptions import Raised
from platform_launch.why.messages.signatures import Catalogue, Match, SignatureRole, SignatureTrait
from platform_launch.why.reading.claims import has_own_cause, is_of_the_code
from platform_launch.why.reading.endings import Ending
from platform_launch.why.reading.events import SURVIVED_LINES, FirstError, NodeEvents, Occurrence
from platform_launch.why.reading.work import FEW_STEPS, shows_work, states_success
from platform_launch.why.sources import LogSource

_MOST_NODES = 2048
_MOST_LOOKS = 400
_MOST_UNDECIDED = 200
# A line this close above an end is the process's last output.
_FEW_LINES = 2
# Others may work so long before they miss the one that failed.
_SOON_S = 60.0


@dataclass(frozen=True)
class _Work:
    """The line from which on a few steps of work are shown, and the time of the last one."""

    number: int = 0
    time_s: float | None = None

    def since_s(self, event: Occurrence) -> float | None:
        """Return how long work continued after an event, 0 without a clock; None if it did not continue."""
        time_s = event.moment.time_s
        later_s = 0.0 if time_s is None or self.time_s is None else self.time_s - time_s
        return later_s if event.last < self.number and later_s >= 0 else None


class LogEvents:
    """The events of one log while it is read; :meth:`finished` returns them by node, pod or task."""

    def __init__(
        self, source: LogSource, catalogue: Catalogue, scanner: Scanner, prefixes: Prefixes, clock: Clock
    ) -> None:
        self.source = source
        self._catalogue = catalogue
        self._scanner = scanner
        self._prefixes = prefixes
        self._clock = clock
        self._nodes: dict[object, NodeEvents] = {}
        self._undecided: list[tuple[NodeEvents, Occurrence]] = []
        self._looks = 0
        self._restarted_at = 0
        self._job_began = False

    def of(self, where: Location) -> NodeEvents:
        """Return the events of the node, pod or task that a place is on."""
        key = (where.node, where.pod, where.task)
        if key not in self._nodes and len(self._nodes) >= _MOST_NODES:
            key = (None, None, None)
        if key not in self._nodes:
            self._nodes[key] = NodeEvents(self.source.name, self.source.clock_offset_s)
        return self._nodes[key]

    def add(
        self,
        match: Match,
        role: SignatureRole,
        line: Line,
        where: Location,
        raised: Raised | None = None,
        start: int | None = None,
        moment: LineTime | None = None,
        writer: Location | None = None,
        *,
        doubtful: bool = False,
    ) -> Occurrence:
        """Add what a line shows; return the recorded event, of several equal ones the first."""
        event = Occurrence(
            signature=match.signature,
            role=role,
            log=self.source.name,
            number=line.number,
            start=line.number if start is None else start,
            shown=line.shown_at(match.position),
            where=where.filled(self.source.where),
            raised=raised,
            moment=self._clock.moment(line) if moment is None else moment,
            details=dict(match.details),
            doubtful=doubtful,
        )
        event.wheres |= {other.filled(self.source.where) for other in match.others}
        holder = self.of(writer or where)
        if role is SignatureRole.CAUSE:
            self._record_restart(event.start, event if event.is_proof else None)
        if event.is_proof:
            self._decide_by(event)
        elif role is SignatureRole.CONSEQUENCE:
            self._suffer(event)
        kept = holder.add(event, self._parting_lines)
        undecided = role is SignatureRole.CAUSE or match.signature.has(SignatureTrait.MEETS)
        if kept is event and undecided and not event.is_proof and len(self._undecided) < _MOST_UNDECIDED:
            self._undecided.append((holder, event))
        return kept

    def _decide_by(self, proof: Occurrence) -> None:
        """Decide on the causes above an uncaught exception."""
        above = [one for one in self._undecided if one[1].last < proof.start]
        work = self._work_below(above, proof.start)
        self._get_over([one for one in above if one[1].role is SignatureRole.CONSEQUENCE], work)
        for one in (one for one in above if one[1].role is not SignatureRole.CONSEQUENCE):
            holder, event = one
            self._undecided.remove(one)
            if work.since_s(event) is not None or has_own_cause(proof, event):
                holder.overcome(event)

    def _suffer(self, event: Occurrence) -> None:
        """Record a consequence: work may have continued until then."""
        above = [one for one in self._undecided if one[1].last < event.start and not one[1].suffered_at]
        self._get_over(above, self._work_below(above, event.start))
        for _, cause in above:
            cause.suffered_at = event.start

    def _get_over(self, causes: list[tuple[NodeEvents, Occurrence]], work: _Work) -> None:
        for holder, event in causes:
            if (since_s := work.since_s(event)) is None:
                continue
            self._undecided.remove((holder, event))
            if event.role is SignatureRole.CONSEQUENCE or since_s > _SOON_S:
                holder.record_survived(event)
            else:
                holder.overcome(event)

    def _work_below(self, causes: list[tuple[NodeEvents, Occurrence]], until: int) -> _Work:
        """Return what is known about the work above line ``until``, if it matters to causes."""
        if not causes:
            return _Work()
        shown = self._lines_that(shows_work, min(event.last for _, event in causes), until)
        if len(shown) < FEW_STEPS:
            return _Work()
        return _Work(shown[FEW_STEPS - 1][0], parse(*shown[0], self._prefixes).time_s)

    def _lines_that(self, show: Callable[[bytes], bool], since: int, until: int) -> list[tuple[int, bytes]]:
        """Return the lines between two events, nearest first, as far as they are still in memory."""
        if self._looks >= _MOST_LOOKS:
            return []
        self._looks += 1
        now = self._scanner.number
        above = self._scanner.preceding(min(now - since, now - until + SURVIVED_LINES))[now - until :]
        return [(until - distance, data) for distance, data in enumerate(above, 1) if show(data)]

    @property
    def has_failed(self) -> bool:
        """Return whether anything has failed so far."""
        return any(node_events.episode.has_failed for node_events in self._nodes.values())

    def restart(self, line: Line, *, job: bool = False) -> None:
        """Record a line that says that the training is restarted, or another job started."""
        self._record_restart(line.number)
        self._job_began = job or (self._restarted_at > 0 and self._job_began)
        self._restarted_at = line.number

    def _record_restart(self, until: int, proof: Occurrence | None = None) -> None:
        """Drop earlier attempts if the latest one worked before line ``until``.

        Drop them also if it ended with a ``proof`` that has a cause of its own.
        """
        since = self._restarted_at
        if not since:
            return
        few = len(self._lines_that(shows_work, since, until)) < FEW_STEPS
        if not few or (proof is not None and self._is_new(proof, since)):
            self._restarted_at = 0
            for node_events in self._nodes.values():
                node_events.record_restart(since)

    def _is_new(self, proof: Occurrence, since: int) -> bool:
        """Return whether a proof does not follow from the causes above a line."""
        episodes = [node_events.episode for node_events in self._nodes.values()]
        above = [one for e in episodes for one in e.of_role(SignatureRole.CAUSE) if one.last < since]
        failed = [one for one in above if not one.signature.has(SignatureTrait.FROM_OUTSIDE)]
        own = is_of_the_code(proof) or (above and not failed and proof.signature.patterns)
        return bool(own) and all(has_own_cause(proof, one, later_job=self._job_began) for one in failed)

    def end(self, ending: Ending, *, has_cause: bool = False) -> None:
        """Record how processes ended; a signal is a cause by itself if the line gave none (``has_cause``)."""
        self._record_restart(ending.line.number)
        self.ended(ending.line)
        holder = ending.line.where if ending.by_scheduler else ending.where
        self.of(holder).end(ending, self._parting_lines)
        signature = self._catalogue.of_exit_code(ending.exit_code)
        own = ending.is_root or (ending.by_scheduler and not ending.was_cancelled and not has_cause)
        if signature is not None and own:
            for place in ending.places:
                self.add(Match(signature, 0, place), signature.role, ending.line, place)

    def ended(self, line: Line) -> None:
        """Record a line that reports an end: the one right above was a process's last output."""
        above = (one for one in self._undecided if not 0 < line.number - one[1].last <= _FEW_LINES)
        self._undecided = list(above)
        self._get_over(self._undecided[:], self._work_below(self._undecided, line.number))

    def err(self, error: FirstError, writer: Location) -> None:
        """Record a line that looks like an error."""
        error = replace(error, where=error.where.filled(self.source.where))
        self.of(writer).err(error, self._parting_lines)

    def suffered_before(self, where: Location) -> bool:
        """Return whether this rank already showed the consequence of another one's failure."""
        if where.rank is None:
            return False
        suffered = self.of(where).episode.of_role(SignatureRole.CONSEQUENCE)
        return any(other.rank == where.rank for event in suffered for other in event.wheres)

    def finished(self) -> list[NodeEvents]:
        """Return the events of each node at the log's end."""
        self._record_restart(self._scanner.number)
        self._record_work()
        for node_events in self._nodes.values():
            node_events.lines_read = self._scanner.lines_read
            node_events.collectives.end(self._scanner.lines_read)
            node_events.leave_out_hosts()
        return list(self._nodes.values())

    def _record_work(self) -> None:
        """Record events after which work continued as harmless, if nothing below reports a failure."""
        end, episodes = self._scanner.number, [node_events.episode for node_events in self._nodes.values()]
        done = [number for number, _ in self._lines_that(states_success, 0, end)]
        work = self._lines_that(shows_work, 0, end)
        steps = [number for number, _ in work]
        few = max([*done, *steps[FEW_STEPS - 1 :], 0])
        last = max([*done, *steps, 0])
        if not last or any(one.ends or one.shows_end_from(few) for one in episodes):
            return
        until_s = math.inf if done else parse(*work[0], self._prefixes).time_s
        for node_events in self._nodes.values():
            node_events.record_work(few, last, until_s)

    @property
    def _parting_lines(self) -> int:
        """How much output separates two episodes: nodes that share a log alternate."""
        return SURVIVED_LINES * max(1, len(self._nodes))
