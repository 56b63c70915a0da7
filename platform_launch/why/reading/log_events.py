"""Gathers what one log tells by nodes, and takes back what work went on after."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from platform_launch.why.lines.clock import Clock, Span
from platform_launch.why.lines.line import Line, Location, parse
from platform_launch.why.lines.prefixes import Prefixes
from platform_launch.why.lines.scan import Scanner
from platform_launch.why.messages.exceptions import Raised
from platform_launch.why.messages.signatures import Catalogue, Match, SignatureRole, SignatureTrait
from platform_launch.why.reading.claims import Claims, has_own_cause, is_of_the_code
from platform_launch.why.reading.endings import ENDED_ALONG, Ending
from platform_launch.why.reading.events import SURVIVED_LINES, FirstError, NodeEvents, Occurrence
from platform_launch.why.reading.work import FEW_STEPS, shows_work, states_success
from platform_launch.why.sources import LogSource

_MOST_NODES = 2048
_MOST_LOOKS_AT_WORK = 200


class LogEvents:
    """The events of one log while it is read; :meth:`finished` returns them by node, pod or task."""

    def __init__(
        self, source: LogSource, catalogue: Catalogue, scanner: Scanner, prefixes: Prefixes, clock: Clock
    ) -> None:
        self.source = source
        self._catalogue = catalogue
        self._scanner = scanner
        self._clock = clock
        self._claims = Claims(scanner.preceding, partial(parse, prefixes=prefixes))
        self._nodes: dict[object, NodeEvents] = {}
        self._looks_at_work = 0
        self._begun_anew_at = 0
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
        span: Span | None = None,
        writer: Location | None = None,
        *,
        doubtful: bool = False,
    ) -> Occurrence:
        """Add what a line shows; return the event that is kept, of several that are the same the first."""
        event = Occurrence(
            signature=match.signature,
            role=role,
            log=self.source.name,
            number=line.number,
            start=line.number if start is None else start,
            shown=line.shown_at(match.position),
            where=where.filled(self.source.where),
            raised=raised,
            span=self._clock.span(line) if span is None else span,
            details=dict(match.details),
            doubtful=doubtful,
        )
        event.wheres |= {other.filled(self.source.where) for other in match.others}
        holder = self.of(writer or where)
        if role is SignatureRole.CAUSE:
            self._leave_behind(event.start, event if event.is_proof else None)
        if event.is_proof:
            self._claims.proved(event, self._scanner.number)
        elif role is SignatureRole.CONSEQUENCE:
            self._claims.suffered(event, self._scanner.number)
        kept = holder.add(event, self._parting_lines)
        if kept is event and (role is SignatureRole.CAUSE or match.signature.has(SignatureTrait.MEETS)):
            self._claims.add(holder, event)
        return kept

    def begin_anew(self, line: Line, *, job: bool = False) -> None:
        """Take note of a line that says that the training is begun once more, or another job."""
        self._leave_behind(line.number)
        self._job_began = job or (self._begun_anew_at > 0 and self._job_began)
        self._begun_anew_at = line.number

    @property
    def has_failed(self) -> bool:
        """Tell whether anything failed in the log so far."""
        return any(node_events.episode.has_failed for node_events in self._nodes.values())

    def _leave_behind(self, until: int, proof: Occurrence | None = None) -> None:
        """Drop earlier attempts if the latest one worked before line ``until``.

        So too if it ended with a ``proof`` that has a cause of its own.
        """
        since, now = self._begun_anew_at, self._scanner.number
        if not since or self._looks_at_work >= _MOST_LOOKS_AT_WORK:
            return
        self._looks_at_work += 1
        below = self._scanner.preceding(min(now - since, now - until + SURVIVED_LINES))[now - until :]
        if sum(map(shows_work, below)) >= FEW_STEPS or (proof is not None and self._is_new(proof, since)):
            self._begun_anew_at = 0
            for node_events in self._nodes.values():
                node_events.leave_behind(since)

    def _is_new(self, proof: Occurrence, since: int) -> bool:
        """Check whether a proof does not follow from the causes above a line."""
        episodes = [node_events.episode for node_events in self._nodes.values()]
        above = [one for e in episodes for one in e.of_role(SignatureRole.CAUSE) if one.last < since]
        failed = [one for one in above if not one.signature.has(SignatureTrait.FROM_OUTSIDE)]
        own = is_of_the_code(proof) or (above and not failed and proof.signature.patterns)
        return bool(own) and all(has_own_cause(proof, one, later_job=self._job_began) for one in failed)

    def end(self, ending: Ending, *, told: bool = False) -> None:
        """Take note of how processes ended; a signal is a cause by itself where their line ``told`` none."""
        self._leave_behind(ending.line.number)
        self.ended(ending.line)
        if ending.exit_code in ENDED_ALONG and self._ended_otherwise(ending):
            ending = replace(ending, is_root=False)
        holder = ending.line.where if ending.by_scheduler else ending.where
        self.of(holder).end(ending, self._parting_lines)
        signature = self._catalogue.of_exit_code(ending.exit_code)
        own = ending.is_root or (ending.by_scheduler and not ending.was_cancelled and not told)
        if signature is not None and own:
            for place in ending.places:
                self.add(Match(signature, 0, place), signature.role, ending.line, place)

    def _ended_otherwise(self, ending: Ending) -> bool:
        """Tell whether another process ended by itself before: launchers then end those that are left."""
        before = (one for node_events in self._nodes.values() for one in node_events.episode.endings)
        others = (one for one in before if not one.by_scheduler and one.where != ending.where)
        return any(one.exit_code not in ENDED_ALONG for one in others)

    def ended(self, line: Line) -> None:
        """Take note of a line that tells of an end: what stands right above was a process's last word."""
        self._claims.ended(line.number, self._scanner.number)

    def err(self, error: FirstError, writer: Location) -> None:
        """Take note of a line that looks like an error."""
        error = replace(error, where=error.where.filled(self.source.where))
        self.of(writer).err(error, self._parting_lines)

    def suffered_before(self, where: Location) -> bool:
        """Tell whether this very rank already suffered from another one's failure."""
        if where.rank is None:
            return False
        suffered = self.of(where).episode.of_role(SignatureRole.CONSEQUENCE)
        return any(other.rank == where.rank for event in suffered for other in event.wheres)

    def finished(self) -> list[NodeEvents]:
        """Return the events of each node at the log's end."""
        self._leave_behind(self._scanner.number)
        self._go_on()
        for node_events in self._nodes.values():
            node_events.lines_read = self._scanner.lines_read
            node_events.collectives.end(self._scanner.lines_read)
            node_events.leave_out_hosts()
        return list(self._nodes.values())

    def _go_on(self) -> None:
        """Take what work went on after for none of a failure, where nothing below tells of one."""
        end, episodes = self._scanner.number, [node_events.episode for node_events in self._nodes.values()]
        above = list(enumerate(self._scanner.preceding(SURVIVED_LINES), 1))
        done = [end - distance for distance, data in above if states_success(data)]
        steps = [end - distance for distance, data in above if shows_work(data)]
        few = max([*done, *steps[FEW_STEPS - 1 :], 0])
        last = max([*done, *steps, 0])
        if not last or any(one.ends or one.tells_from(few) for one in episodes):
            return
        worked_at = max(steps[:1] or done)
        until_s = math.inf if done else parse(0, above[end - worked_at - 1][1]).time_s
        for node_events in self._nodes.values():
            node_events.go_on(few, last, until_s)

    @property
    def _parting_lines(self) -> int:
        """How much output parts two episodes: nodes that share a log take turns."""
        return SURVIVED_LINES * max(1, len(self._nodes))
