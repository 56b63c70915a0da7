"""Reads one log into events."""

from __future__ import annotations

import re

from platform_launch.why.assembly import Assembly, Reading, meaning_of
from platform_launch.why.clock import Clock, Span
from platform_launch.why.endings import Ending, SummaryBlock, ending_in, opens_block
from platform_launch.why.events import MOST_REPEATS, SURVIVED_LINES, Event, FirstError, Strand
from platform_launch.why.exceptions import Raised, lone
from platform_launch.why.line import Line, Where, parse
from platform_launch.why.scan import Scanner
from platform_launch.why.signatures import Catalogue, Role, Signature
from platform_launch.why.sources import LogSource

_CLEAR_ERROR = re.compile(
    r"^[\w.]*(?:Error|Exception)\b|\b(?:ERROR|FATAL|CRITICAL)\b|^(?:\S+: )?(?:fatal |internal )?error\b", re.I
)
_ERROR = re.compile(r"error|fatal|fail(?:ed|ure)|exception|panic|abort|cannot|unable to", re.I)
# What says itself that it failed, and is not quoted by a line about something else.
_OUTRIGHT = re.compile(r"[\w./-]*(?:Error|Exception)\b|\S*python[\d.]*: |.*NCCL WARN")
_SUCCESS = re.compile(r"\[SUCCESS\] training finished after")
# All nodes of a job name the first that failed, that one too.
_FIRST_FAILED = re.compile(r"(?:error:|\[ERROR\]) node (\d{1,6}), ")
_MOST_STRANDS = 2048


class LogReader:
    """Reads one source; afterwards :attr:`strands` holds what each node in it said."""

    def __init__(self, source: LogSource, catalogue: Catalogue) -> None:
        self.strands: dict[object, Strand] = {}
        self._source = source
        self._catalogue = catalogue
        self._scanner = Scanner(source.stream)
        self._clock = Clock(self._scanner)
        self._tracebacks = Assembly(self._clock)
        self._summaries: dict[Where, SummaryBlock] = {}

    def read(self) -> list[Strand]:
        """Read to the end."""
        for raw in self._scanner.lines():
            line = parse(raw.number, raw.data)
            self._clock.read(line)
            if not self._take(line):
                self._scanner.dismiss()
            for reading in self._tracebacks.finished():
                self._conclude(reading)
            self._scanner.everything = self._tracebacks.is_open or bool(self._summaries)
        self._tracebacks.close()
        for reading in self._tracebacks.finished():
            self._conclude(reading)
        for strand in self.strands.values():
            strand.lines_read = self._scanner.lines_read
        return list(self.strands.values())

    def _take(self, line: Line) -> bool:
        """Read a line; return False if it meant nothing."""
        if self._tracebacks.take(line):
            return True
        if self._catalogue.is_noise(line.text) or self._names_itself(line):
            return False
        if self._take_summary(line):
            return True
        if signature := self._catalogue.match(line.text):
            return self._take_signature(line, signature)
        return self._take_unknown(line)

    def _names_itself(self, line: Line) -> bool:
        found = _FIRST_FAILED.match(line.text)
        return found is not None and int(found[1]) == self._filled(line.where).node

    def _take_summary(self, line: Line) -> bool:
        """Read how a process ended, on one line or in torchrun's block of them."""
        if opens_block(line.text):
            self._summaries[line.process] = SummaryBlock(line.text)
            return False
        block = self._summaries.get(line.process)
        ending = block.read(line) if block is not None else ending_in(line)
        if block is not None and block.done:
            del self._summaries[line.process]
        if ending is not None:
            self._take_ending(ending)
        return block is not None or ending is not None

    def _take_ending(self, ending: Ending) -> None:
        self._strand(ending.where).end(ending, self._parting_lines)
        signature = self._catalogue.of_exit_code(ending.exit_code)
        if signature is not None and ending.is_root:
            self._add(signature, signature.role, ending.line, ending.where)

    def _take_signature(self, line: Line, signature: Signature) -> bool:
        role = signature.role
        if role is Role.CAUSE and (line.mild or (signature.raised and not _OUTRIGHT.match(line.text))):
            role = Role.SUSPECT
        raised = lone(line, [parse(0, data) for data in self._scanner.preceding(4)])
        kept = self._add(signature, role, line, line.where, raised)
        return kept.count < MOST_REPEATS

    def _take_unknown(self, line: Line) -> bool:
        strand = self._strand(line.where)
        if _SUCCESS.search(line.text):
            strand.finished_at = line.number
            return True
        if line.mild or not _ERROR.search(line.text):
            return False
        clear = _CLEAR_ERROR.search(line.text) is not None
        error = FirstError(self._source.name, line.number, line.shown, self._filled(line.where), clear)
        strand.err(error, self._parting_lines)
        return False

    def _conclude(self, reading: Reading) -> None:
        """Turn a finished traceback into an event."""
        chain = reading.traceback.chain
        if not chain.links:
            return
        raised, signature, role = meaning_of(chain, self._catalogue)
        if not signature.patterns and self._had_consequence(chain.where):
            role = Role.SUSPECT
        where = chain.where.filled(raised.line.where)
        event = self._add(signature, role, raised.line, where, raised, chain.start, reading.span)
        if raised is not chain.links[-1] and not chain.root:
            event.ended_as = chain.links[-1].text

    def _had_consequence(self, where: Where) -> bool:
        """Tell whether this very rank already suffered from another one's failure."""
        if where.rank is None:
            return False
        suffered = self._strand(where).episode.of_role(Role.CONSEQUENCE)
        return any(other.rank == where.rank for event in suffered for other in event.wheres)

    def _add(
        self,
        signature: Signature,
        role: Role,
        line: Line,
        where: Where,
        raised: Raised | None = None,
        start: int | None = None,
        span: Span | None = None,
    ) -> Event:
        event = Event(
            signature=signature,
            role=role,
            log=self._source.name,
            number=line.number,
            start=line.number if start is None else start,
            shown=line.shown,
            where=self._filled(where),
            raised=raised,
            span=self._clock.span(line) if span is None else span,
        )
        return self._strand(where).add(event, self._parting_lines)

    @property
    def _parting_lines(self) -> int:
        """How much output parts two episodes: nodes that share a log take turns."""
        return SURVIVED_LINES * max(1, len(self.strands))

    def _strand(self, where: Where) -> Strand:
        key = (where.node, where.pod, where.task)
        if key not in self.strands and len(self.strands) >= _MOST_STRANDS:
            key = (None, None, None)
        if key not in self.strands:
            self.strands[key] = Strand(self._source.name, self._source.clock_offset_s)
        return self.strands[key]

    def _filled(self, where: Where) -> Where:
        return where.filled(Where(node=self._source.node))
