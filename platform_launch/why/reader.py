"""Reads one log into events."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from platform_launch.events import Event as LauncherEvent
from platform_launch.events import in_text
from platform_launch.why.assembly import Assembly, OpenTraceback, meaning_of
from platform_launch.why.batch import LINES_OF_A_REPORT, host_of_job, tells_of_end
from platform_launch.why.claims import Claims
from platform_launch.why.clock import Clock, Span
from platform_launch.why.endings import Ending, SummaryBlock, ending_in, ending_of, opens_block
from platform_launch.why.error_lines import (
    gives_reason,
    hints_at_error,
    introduces,
    last_words,
    says_error,
)
from platform_launch.why.events import MOST_REPEATS, SURVIVED_LINES, FirstError, NodeEvents, Occurrence
from platform_launch.why.exceptions import Chain, Raised, is_frame, lone, opens
from platform_launch.why.line import NOWHERE, Line, Location, parse, plain, shown
from platform_launch.why.note import Note, note
from platform_launch.why.own_lines import OwnLines
from platform_launch.why.pods import LINES_OF_A_DESCRIPTION, pod_above, speaks_of_a_pod, was_placed
from platform_launch.why.prefixes import Prefixes
from platform_launch.why.rejoin import rejoined, unwrapped
from platform_launch.why.scan import Scanner
from platform_launch.why.signatures import Catalogue, Match, Signature, SignatureRole
from platform_launch.why.sources import LogSource
from platform_launch.why.steps import FEW_STEPS, StepEnd, StepReader, shows_work, tells_success
from platform_launch.why.unwrap import unwrap

# What says itself that it failed, and is not quoted by a line about something else.
_OUTRIGHT = re.compile(
    r"[\w./-]*(?:Error|Exception)\b|\s*what\(\): |\S*python[\d.]*: |.*(?:NCCL WARN|\|CCL_ERROR\|)"
    r"|(?:CUDA|cuda|Cuda) ?[Ee]rror\D{0,9}\d+\s*$|forrtl: severe"
    r"|(?:\S{1,80}:\d+\] )?[A-Z]{3,5} out of memory\. (?:\w+ )?[Tt]ried to allocate "
)
_MOST_NODES = 2048
_MOST_REPORTS = 64
_LINES_TO_LEARN_FROM = 40
_LINES_OF_A_TRACEBACK = 80
_LINES_OF_A_REPORT = 12
# Of a box that rich draws around a traceback, and the line that ends it.
_LINES_ABOVE = 300
_BOX_ENDS = re.compile("[╰└]─".encode())
_MOST_RECOVERED = 500
_MOST_LOOKS_AT_WORK = 200
_MOST_LOOKS_FOR_WORDS = 200
_LINES_OF_LAST_WORDS = 24
_LINES_OF_WORDS = 2
# An exception behind one word with a number, which may be the host that pdsh puts before each line.
_BEHIND_A_WORD = re.compile(r"(?=[\w.@-]*\d)[\w.@-]{2,80}: (?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): ")
# Ray raises what a task raised once more where its result is asked for, and what an actor did at its start.
_HANDED_ON = "ray.exceptions.RayTaskError("
_AT_ITS_START = "The actor died because of an error raised in its creation task"
# What the end of such a traceback says of an actor that died, with the place below.
_DEAD = b": The actor died"
# What ends a process that another one's failure reached, as a fatal line of its own says.
_ENDS_BY_ORDER = re.compile(r"ProcessGroup|[Tt]erminating (?:the )?process|[Cc]oordination")
# What a launcher says of its own end.
_ENDS_OF_LAUNCHES = frozenset(
    """
    launch-refused training-failed training-finished training-followed training-killed training-stopped
    """.split()  # noqa: SIM905
)
# Where a launcher asks the store on the master.
_STORE = re.compile(r"/elastic/rendezvous/c10d_rendezvous_backend\.py$")
# What MPICH ends the first line of an error with, which says which rank has it; the cause stands below.
_STACK = "error stack:"
# What a shell prints of a command before it runs it (set -x).
_TRACED = re.compile(r"\+{1,5} \S")
_LINES_OF_WHAT_PASSED = 40
# NCCL's start-up tells which rank a host has.
_HOME = re.compile(r"NCCL INFO .*\brank (\d{1,7}) nranks (\d{1,7})\b")
# What a log says of its job as a whole, by the name under which the verdict shows it.
_FACTS = re.compile(r"rdzv_endpoint\s*[:=]\s*(?!None\b)(?P<endpoint>\w[^\s',\]]*)")


class LogReader:
    """Reads one source; afterwards :attr:`nodes` holds what each node in it said."""

    def __init__(self, source: LogSource, catalogue: Catalogue) -> None:
        self.nodes: dict[object, NodeEvents] = {}
        self._source = source
        self._catalogue = catalogue
        self._scanner = Scanner(rejoined(source.stream))
        self._clock = Clock(self._scanner)
        self._tracebacks = Assembly(self._clock, self._scanner.preceding)
        self._prefixes = Prefixes()
        self._steps = StepReader(self._scanner.preceding)
        self._claims = Claims(
            self._scanner.preceding, lambda number, data: parse(number, data, self._prefixes)
        )
        self._recovered = self._looks_at_work = self._looks_for_words = 0
        self._stack = 0, NOWHERE
        self._summaries: dict[Location, SummaryBlock] = {}
        self._own = OwnLines(source.events)
        self._own_seen: set[str] = set()
        self._hosts: list[str | None] = []  # of the jobs that a scheduler's reports tell of

    def read(self) -> list[NodeEvents]:
        """Read to the end."""
        for raw in self._scanner.lines():
            taken = False
            for data in unwrap(raw.data):
                line = self._parse(raw.number, data)
                self._clock.read(line)
                taken |= self._take(line)
            if not taken:
                self._scanner.dismiss()
            for reading in self._tracebacks.finished():
                self._conclude(reading)
            reporting = bool(self._summaries) or self._steps.expects(raw.number)
            self._scanner.everything = self._tracebacks.is_open or reporting
        self._tracebacks.close()
        for reading in self._tracebacks.finished():
            self._conclude(reading)
        for said in self._own.unread(self._own_seen):
            data = in_text(said).encode()
            self._take_own(parse(self._scanner.lines_read + 1, data, self._prefixes), said)
        self._end()
        for node_events in self.nodes.values():
            node_events.lines_read = self._scanner.lines_read
            if len(set(self._hosts)) == 1 and self._hosts[0] is not None:
                node_events.stand_on(self._hosts[0])
        return list(self.nodes.values())

    def _end(self) -> None:
        """Take what work went on after for none of a failure, where nothing below tells of one."""
        end, episodes = self._scanner.number, [node_events.episode for node_events in self.nodes.values()]
        above = list(enumerate(self._scanner.preceding(SURVIVED_LINES), 1))
        done = max((end - distance for distance, data in above if tells_success(data, distance)), default=0)
        steps = [end - distance for distance, data in above if shows_work(data)]
        few = max(done, *steps[FEW_STEPS - 1 : FEW_STEPS], 0)
        last = max(done, *steps[:1], 0)
        if not last or any(one.ends or one.tells_from(few) for one in episodes):
            return
        for node_events in self.nodes.values():
            node_events.go_on(few, last)

    def remarks(self) -> list[Note]:
        """Say what was not read."""
        name, left_out = self._source.name, self._scanner.left_out
        heads = ", ".join(f'"{shown(head.decode(errors="replace"))}"' for head in sorted(left_out))
        remarks = []
        if heads:
            remarks.append(note("lines-left-out", log=name, heads=heads))
        if "traceback" in self._scanner.worn:
            remarks.append(note("tracebacks-left-out", log=name))
        return remarks

    def _parse(self, number: int, data: bytes) -> Line:
        """Take a line apart; where a traceback begins behind an unknown prefix, learn that first."""
        line = parse(number, data, self._prefixes)
        if line.text.endswith(" "):
            head = line.whole[: len(line.whole) - len(line.text)]
            below = (plain(data).removeprefix(head) for data in self._scanner.following(_LINES_OF_A_REPORT))
            line = replace(line, text=unwrapped(line.text, below))
        begins = opens(line.text) or "  File " in line.text or _BEHIND_A_WORD.match(line.text)
        if not begins or is_frame(line.text):
            return line
        following = (plain(below) for below in self._scanner.following(_LINES_TO_LEARN_FROM))
        return parse(number, data, self._prefixes) if self._prefixes.learn(line.text, following) else line

    def _take(self, line: Line) -> bool:
        """Read a line; return False if it meant nothing."""
        if (said := self._own.read(line.text)) is not None:
            self._own_seen.add(said.id)
            return self._take_own(line, said)
        if self._scanner.skipped and self._take_recovered(line):
            return True
        if self._tracebacks.take(line):
            return True
        if self._catalogue.is_noise(line.text) or _TRACED.match(line.text):
            return False
        node_events = self._events_of(line.where)
        if node_events.collectives.read(line):
            return True
        if line.where.host is not None and (home := _HOME.search(line.text)):
            node_events.live(int(home[1]), int(home[2]), line.where.host)
            return True
        if fact := _FACTS.search(line.text):
            node_events.facts.setdefault("rendezvous", fact["endpoint"])
        if tells_of_end(line.text) and len(self._hosts) < _MOST_REPORTS:
            self._hosts.append(host_of_job(self._scanner.preceding(LINES_OF_A_REPORT)))
        step = self._steps.read(line)
        match = self._match(line)
        told = match is not None and match.signature.role is not SignatureRole.SUMMARY
        if step is None and self._take_summary(line) and (not told or line.process in self._summaries):
            return True
        if step is not None:
            self._take_step(step, match)
            if step.ordered:
                return True
        if match is not None and (step is None or match.signature.role is not SignatureRole.SUMMARY):
            return self._take_match(line, match, of_scheduler=step is not None)
        if step is not None:
            return True
        return self._take_unknown(line)

    def _match(self, line: Line) -> Match | None:
        """Return what a line shows; of what Ray hands on, the end of its traceback tells more."""
        match = self._catalogue.match(line.text)
        if match is None or not self._tracebacks.is_open:
            return match
        summed_up = self._catalogue["ray_task_error"]
        if _AT_ITS_START in line.text:
            return Match(summed_up, 0, NOWHERE)
        if not line.text.startswith(_HANDED_ON):
            return match
        dead = match.signature.id.startswith("ray_")
        if dead and not any(_DEAD in data for data in self._scanner.following(_LINES_OF_A_TRACEBACK)):
            return match
        return self._catalogue.match_of(summed_up, line.text)

    def _take_recovered(self, line: Line) -> bool:
        """Read an exception whose traceback was left out, as one of very many that begin like it."""
        if self._recovered >= _MOST_RECOVERED or lone(line) is None:
            return False
        above = self._scanner.preceding(_LINES_OF_A_TRACEBACK)
        begins = next((n for n, data in enumerate(above, 1) if b"Traceback (most recent" in data), 0)
        if not begins:
            return False
        self._recovered += 1
        assembly = Assembly(self._clock, self._scanner.preceding)
        for distance in range(begins, 0, -1):
            assembly.take(parse(line.number - distance, above[distance - 1], self._prefixes))
        if not assembly.is_open or not assembly.take(line):
            return False
        assembly.close()
        for reading in assembly.finished():
            if reading.traceback.chain.links:
                self._conclude(reading)
        return True

    def _take_step(self, step: StepEnd, match: Match | None) -> None:
        """Take note of tasks that ended; a signal is a cause by itself where the line says nothing better."""
        self._claims.ended(step.line.number, self._scanner.number)
        if step.exit_code > 0:
            self._hear_last_words(step.line, step.places)
        self._events_of(step.line.where).step(step, self._parting_lines)
        signature = self._catalogue.of_exit_code(step.exit_code)
        known = match is not None and match.signature.role is not SignatureRole.SUMMARY
        if signature is not None and not known and not step.was_cancelled:
            for place in step.places:
                self._add(Match(signature, 0, place), signature.role, step.line, place)

    def _take_own(self, line: Line, said: LauncherEvent) -> bool:
        """Read a line of this launcher, of which only the event counts; return False if it meant nothing."""
        if said.id == "launch-opened":
            self._events_of(line.where).is_open = True
            return True
        if said.id in _ENDS_OF_LAUNCHES:
            self._events_of(line.where).is_open = False
        if said.id == "training-finished":
            self._events_of(line.where).finished_at = line.number
            return True
        if ending := ending_of(said, line):
            self._take_ending(ending)
            return True
        signature = self._catalogue.of_event(said)
        if signature is None:
            return False
        where, node = line.where, str(said.fields.get("node", ""))
        if signature.role is SignatureRole.CAUSE and node.isdecimal():  # all nodes say on which one it was
            where = Location(node=int(node))
        # All nodes of a job name the one that failed first, that one too.
        elif node == str(self._filled(line.where).node):
            return False
        self._add(Match(signature, 0, where), signature.role, line, where)
        return True

    def _take_summary(self, line: Line) -> bool:
        """Read how a process ended, on one line or in torchrun's block of them."""
        if opens_block(line.text):
            self._summaries[line.process] = SummaryBlock(line.text)
            return False
        block = self._summaries.get(line.process)
        ending = block.read(line) if block else ending_in(line, self._scanner.following(1))
        if block is not None and block.done:
            del self._summaries[line.process]
        if ending is not None:
            if block is None and not tells_of_end(line.text):  # above that stands the job's script
                self._hear_last_words(ending.line, [ending.where])
            self._take_ending(ending)
        return block is not None or ending is not None

    def _take_ending(self, ending: Ending) -> None:
        self._claims.ended(ending.line.number, self._scanner.number)
        self._events_of(ending.where).end(ending, self._parting_lines)
        signature = self._catalogue.of_exit_code(ending.exit_code)
        if signature is not None and ending.is_root:
            self._add(Match(signature, 0, ending.where), signature.role, ending.line, ending.where)

    def _take_match(self, line: Line, match: Match, *, of_scheduler: bool) -> bool:
        signature, role = match.signature, match.signature.role
        mention = line.mild or (signature.raised and not _OUTRIGHT.match(line.text))
        if self._passed(signature, line.text):
            return False
        if role is SignatureRole.CAUSE and mention:
            role = SignatureRole.SUSPECT
        if signature.below:
            following = self._scanner.following(_LINES_OF_A_REPORT)
            match = self._catalogue.goes_on(
                match, (parse(0, data, self._prefixes).text for data in following)
            )
        raised = self._lone(line)
        where = match.where.filled(line.where)
        if line.text.endswith(_STACK):
            self._stack = line.number + _LINES_OF_A_REPORT, where
        elif line.number < self._stack[0] and not of_scheduler:
            where = where.filled(self._stack[1])
        elif where == NOWHERE and speaks_of_a_pod(line.text):
            where = pod_above(self._scanner.preceding(LINES_OF_A_DESCRIPTION))
        kept = self._add(match, role, line, where, raised, writer=line.where)
        kept.mention = kept.mention and mention if kept.count > 1 else mention
        return kept.count < MOST_REPEATS

    def _passed(self, signature: Signature, text: str) -> bool:
        """Tell whether lines below say that what one tells of passed, as events of pods and kernels do."""
        following = self._scanner.following(_LINES_OF_WHAT_PASSED)
        if signature.id == "pod_unschedulable":
            return was_placed(text, following)
        below = b"\n".join(following).decode(errors="replace") if signature.passed else ""
        return any(re.search(pattern, below) for pattern in signature.passed)

    def _lone(self, line: Line) -> Raised | None:
        """Return the exception that a line names without a traceback, with all of its message."""
        above = self._scanner.preceding(4)
        if above and _BOX_ENDS.search(above[0]):
            above = self._scanner.preceding(_LINES_ABOVE)
        raised = lone(line, (parse(0, data, self._prefixes) for data in above))
        if raised is not None:
            for number, data in enumerate(self._scanner.following(_LINES_OF_A_REPORT), line.number + 1):
                if not data.strip():
                    break
                below = parse(number, data, self._prefixes)
                if below.writer != line.writer or opens(below.text) or not raised.go_on(below.text, below):
                    break
        return raised

    def _take_unknown(self, line: Line) -> bool:
        node_events = self._events_of(line.where)
        if not hints_at_error(line):
            return False
        if any(above.rstrip().endswith(b"Warning:") for above in self._scanner.preceding(1)):
            return False  # the warning's own text
        clear = says_error(line)
        if raised := self._lone(line):
            match = Match(self._catalogue["python_exception"], 0, NOWHERE)
            uncaught = raised.innermost is not None and not self._had_consequence(line.where)
            role = SignatureRole.CAUSE if uncaught else SignatureRole.SUSPECT
            self._add(match, role, line, line.where, raised)
            return False
        if line.fatal and not _ENDS_BY_ORDER.search(line.text):
            match = Match(self._catalogue["native_assert"], 0, NOWHERE)
            self._add(match, SignatureRole.SUSPECT, line, line.where)
            return True
        error = self._error_at(line, clear=clear, below=self._scanner.following(_LINES_OF_WORDS))
        if clear:
            self._outlive_error(node_events)
        node_events.err(error, self._parting_lines)
        return False

    def _error_at(self, line: Line, *, clear: bool, below: list[bytes]) -> FirstError:
        """Return a line that looks like an error; with the next one, where it only introduces that."""
        text = line.shown
        if introduces(line.text) and (data := next(filter(bytes.strip, below), b"")):
            message = parse(line.number + 1, data, self._prefixes).text
            text = text if self._catalogue.match(message) else shown(f"{text} {message.strip()}")
        return FirstError(self._source.name, line.number, text, self._filled(line.where), clear)

    def _outlive_error(self, node_events: NodeEvents) -> None:
        """Take a line that says an error for less than that where work went on below it."""
        error = node_events.first_error
        if error is None or not error.clear or self._looks_at_work >= _MOST_LOOKS_AT_WORK:
            return
        self._looks_at_work += 1
        below = self._scanner.preceding(min(self._scanner.number - error.number, SURVIVED_LINES))
        if sum(map(shows_work, below)) >= FEW_STEPS:
            node_events.first_error = replace(error, clear=False)

    def _hear_last_words(self, line: Line, places: Sequence[Location]) -> None:
        """Keep the last line above the first report of an end, of one of the processes that ended."""
        node_events = self._events_of(line.where)
        self._outlive_error(node_events)
        if node_events.last_words is not None or self._looks_for_words >= _MOST_LOOKS_FOR_WORDS:
            return
        self._looks_for_words += 1
        behind = max(0, self._scanner.number - line.number)
        above = self._scanner.preceding(behind + _LINES_OF_LAST_WORDS)[behind:]
        parsed = ((parse(line.number - n, data, self._prefixes), data) for n, data in enumerate(above, 1))
        said = last_words(
            (one, data)
            for one, data in parsed
            if (one.writer == line.writer or _may_be_of(one.process, places))
            and not self._catalogue.is_noise(one.text)
        )
        if said is None:
            return
        clear = gives_reason(said)
        at = line.number - said.number
        words = self._error_at(said, clear=clear, below=above[: at - 1][::-1])
        node_events.last_words = words
        if clear and self._catalogue.match(said.text) is None:
            node_events.err(words, self._parting_lines)

    def _conclude(self, reading: OpenTraceback) -> None:
        """Turn a finished traceback into an event."""
        chain = reading.traceback.chain
        if chain.harmless:
            return
        if not chain.links or chain.is_wrapper:
            self._conclude_cut(chain, reading)
            return
        raised, match, role = meaning_of(chain, self._catalogue)
        if role is SignatureRole.SUMMARY and (ending := ending_in(raised.line)):
            self._take_ending(ending)
        if not match.signature.patterns and self._had_consequence(chain.where):
            role = SignatureRole.SUSPECT
        match = self._catalogue.goes_on(match, (line.text for line in raised.more))
        where = match.where.filled(chain.where).filled(raised.line.where)
        self._events_of(where).collectives.read(raised.line)
        event = self._add(match, role, raised.line, where, raised, chain.start, reading.span)
        event.mention = chain.mild and role is SignatureRole.SUSPECT
        if raised.text != chain.links[-1].text and not chain.root:
            event.ended_as = chain.links[-1].text
        if not chain.root and raised.handling and raised.text != chain.links[0].text:
            event.handling = chain.links[0].text

    def _conclude_cut(self, chain: Chain, reading: OpenTraceback) -> None:
        """Keep a traceback that ends before it says what was raised: at least it names a place."""
        if len(chain.frames) < 2 and not chain.headless:
            return
        last, place, line = chain.frames[-1], chain.place, reading.traceback.last_line
        if last.is_launcher:
            told = self._catalogue["master_unreachable" if _STORE.search(last.file) else "child_failed"]
            match = Match(told, 0, chain.where)
            self._add(match, told.role, line, chain.where, start=chain.start, span=reading.span)
            return
        if place is None:
            return
        match = Match(
            self._catalogue["traceback_cut"],
            0,
            chain.where,
            (("innermost", f"{last.file}:{last.line} in {last.function}"),),
        )
        self._add(
            match,
            SignatureRole.SUSPECT,
            line,
            chain.where,
            Raised("", "", line, place),
            chain.start,
            reading.span,
        )

    def _had_consequence(self, where: Location) -> bool:
        """Tell whether this very rank already suffered from another one's failure."""
        if where.rank is None:
            return False
        suffered = self._events_of(where).episode.of_role(SignatureRole.CONSEQUENCE)
        return any(other.rank == where.rank for event in suffered for other in event.wheres)

    def _add(
        self,
        match: Match,
        role: SignatureRole,
        line: Line,
        where: Location,
        raised: Raised | None = None,
        start: int | None = None,
        span: Span | None = None,
        writer: Location | None = None,
    ) -> Occurrence:
        event = Occurrence(
            signature=match.signature,
            role=role,
            log=self._source.name,
            number=line.number,
            start=line.number if start is None else start,
            shown=line.shown_at(match.position),
            where=self._filled(where),
            raised=raised,
            span=self._clock.span(line) if span is None else span,
            details=dict(match.details),
        )
        if event.is_proof:
            self._claims.proved(event, self._scanner.number)
        elif role is SignatureRole.CONSEQUENCE:
            self._claims.suffered(event, self._scanner.number)
            self._outlive_error(self._events_of(writer or where))
        holder = self._events_of(writer or where)
        kept = holder.add(event, self._parting_lines)
        if kept is event and role is SignatureRole.CAUSE:
            self._claims.add(holder, event)
        return kept

    @property
    def _parting_lines(self) -> int:
        """How much output parts two episodes: nodes that share a log take turns."""
        return SURVIVED_LINES * max(1, len(self.nodes))

    def _events_of(self, where: Location) -> NodeEvents:
        key = (where.node, where.pod, where.task)
        if key not in self.nodes and len(self.nodes) >= _MOST_NODES:
            key = (None, None, None)
        if key not in self.nodes:
            self.nodes[key] = NodeEvents(self._source.name, self._source.clock_offset_s)
        return self.nodes[key]

    def _filled(self, where: Location) -> Location:
        return where.filled(self._source.where)


def _may_be_of(writer: Location, places: Sequence[Location]) -> bool:
    """Tell whether a line may be of one of the processes that ended."""
    if writer.rank is not None:
        ranks = {place.rank for place in places if place.rank is not None}
        local = {place.local_rank for place in places if place.local_rank is not None}
        # Nodes have 4, 8 or 16 processes.
        return writer.rank in ranks if ranks else not local or any((writer.rank - n) % 4 == 0 for n in local)
    tasks = {place.task for place in places} - {None}
    return writer.task is None or not tasks or writer.task in tasks
