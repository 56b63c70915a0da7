"""Reads one log into events."""

from __future__ import annotations

import re
from dataclasses import replace

from platform_launch.text import joined
from platform_launch.why.lines.clock import Clock
from platform_launch.why.lines.line import NOWHERE, Line, Location, parse, plain, shown, text_of
from platform_launch.why.lines.prefixes import Prefixes
from platform_launch.why.lines.scan import RawLine, Scanner
from platform_launch.why.lines.unwrap import unwrap
from platform_launch.why.messages.exceptions import Raised
from platform_launch.why.messages.signatures import Catalogue, Match, SignatureRole
from platform_launch.why.messages.tracebacks import Traceback, extend_message, is_frame, lone, opens
from platform_launch.why.note import Note, note
from platform_launch.why.reading.assembly import Assembly, meaning_of
from platform_launch.why.reading.claims import is_restart, loads_modules
from platform_launch.why.reading.endings import Ending, EndingReader, ending_in
from platform_launch.why.reading.error_lines import ErrorLines, hints_at_error
from platform_launch.why.reading.events import MOST_REPEATS, NodeEvents
from platform_launch.why.reading.evidence import Surroundings, is_code, is_mild, is_only_about_it, is_quoted
from platform_launch.why.reading.log_events import LogEvents
from platform_launch.why.reading.own_lines import OwnLines
from platform_launch.why.reading.pods import LINES_OF_A_DESCRIPTION, is_about_a_pod, pod_in_row, pod_of
from platform_launch.why.sources import LogSource

_LINES_TO_LEARN_FROM = 40
_LINES_OF_A_PAGE = 50
_LINES_OF_A_TRACEBACK = 80
_LINES_TO_SURVEY = 15
_LONGEST_SURVEYED = 300
_LINES_OF_A_REPORT = 12
_MOST_RECOVERED = 500
# An exception after one word with a number, which may be the host that pdsh puts before each line.
_BEHIND_A_WORD = re.compile(r"(?=[\w.@-]*\d)[\w.@-]{2,80}: (?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): ")
# Ray raises a task's exception again where its result is needed, and an actor's from its start.
_HANDED_ON = "ray.exceptions.RayTaskError("
_AT_ITS_START = "The actor died because of an error raised in its creation task"
# The end of such a traceback about an actor that died, with the place below.
_DEAD = b": The actor died"
# This message is about an actor on another node, whose address is above.
_OF_AN_ACTORS_NODE = "because its node has died"
# Where a launcher uses the store on the master.
_STORE = re.compile(r"/elastic/rendezvous/c10d_rendezvous_backend\.py$")
# The end of the first line of an MPICH error, which names the rank; the cause is below.
_STACK = "error stack:"
# MPI's message about a program that ended itself, mostly below the reason.
_GAVE_UP = "mpi_abort"
# What a log says about its job as a whole, by the verdict's name for it.
_FACTS = re.compile(r"rdzv_endpoint\s*[:=]\s*(?!None\b)(?P<peer>\w[^\s',:\]]*)(?::(?P<port>\d{1,5}))?")


class LogReader:
    """Reads one source: parses each line and finds the reader that understands it."""

    def __init__(self, source: LogSource, catalogue: Catalogue) -> None:
        self._name = source.name
        self._catalogue = catalogue
        self._scanner = Scanner(source.stream)
        self._prefixes = Prefixes()
        self._clock = Clock()
        self._events = LogEvents(source, catalogue, self._scanner, self._prefixes, self._clock)
        self._own = OwnLines(source.events, catalogue, self._prefixes, self._events)
        self._errors = ErrorLines(catalogue, self._scanner, self._prefixes, self._events)
        self._tracebacks = Assembly(self._clock)
        self._endings = EndingReader(self._scanner.following)
        self._around = Surroundings(self._scanner, self._prefixes)
        self._recovered = 0
        self._survey_at = 0
        self._stack = 0, NOWHERE

    def read(self) -> list[NodeEvents]:
        """Read to the end; return the events of each node in it."""
        for raw in self._scanner.lines():
            self._survey(raw)
            taken = False
            if self._scanner.begins_again:
                self._handle_repetition(raw)
            for data in unwrap(raw.data):
                line = self._parse(raw.number, data)
                self._clock.read(line)
                taken |= self._handle(line)
            if not taken:
                self._scanner.dismiss()
            for reading in self._tracebacks.finished():
                self._conclude(reading)
            self._scanner.everything = self._tracebacks.is_open or self._endings.expects(raw.number)
        self._close_tracebacks()
        self._own.handle_unread(self._scanner.lines_read + 1)
        return self._events.finished()

    def _handle_repetition(self, raw: RawLine) -> None:
        """The log's first lines are repeated: this is another attempt, if anything failed before."""
        self._close_tracebacks()
        if self._events.has_failed:
            self._events.restart(self._parse(raw.number, raw.data))
        else:
            self._scanner.ignore_repetition()

    def _survey(self, raw: RawLine) -> None:
        """Examine the beginnings of lines, at the start of a log and then less and less often."""
        if raw.number >= self._survey_at:
            self._survey_at = 2 * raw.number
            around = [*self._scanner.preceding(_LINES_TO_SURVEY), raw.data]
            around += self._scanner.following(_LINES_TO_SURVEY)
            self._prefixes.survey([plain(data[:_LONGEST_SURVEYED]) for data in around])

    def _close_tracebacks(self) -> None:
        self._tracebacks.close()
        for reading in self._tracebacks.finished():
            self._conclude(reading)

    def remarks(self) -> list[Note]:
        """Return notes on the parts of the log that were not read."""
        heads = (shown(head.decode(errors="replace")) for head in sorted(self._scanner.left_out))
        remarks = []
        if self._scanner.empty:
            remarks.append(note("empty", log=self._name))
        if self._scanner.left_out:
            remarks.append(note("lines-left-out", log=self._name, heads=joined(map('"{}"'.format, heads))))
        if "traceback" in self._scanner.worn:
            remarks.append(note("tracebacks-left-out", log=self._name))
        return remarks

    def last_line(self) -> list[Note]:
        """Quote the last line of the log, unless it ends with a page of empty ones."""
        for distance, data in enumerate(self._scanner.preceding(_LINES_OF_A_PAGE), 1):
            if data.strip():
                last = parse(self._scanner.number - distance, data, self._prefixes)
                return [note("ends-with", log=shown(self._name), line=last.number, text=last.shown)]
        return []

    def _parse(self, number: int, data: bytes) -> Line:
        """Parse a line; if a traceback begins after an unknown prefix, learn that first."""
        line = parse(number, data, self._prefixes)
        begins = opens(line.text) or "  File " in line.text or _BEHIND_A_WORD.match(line.text)
        if not begins or is_frame(line.text):
            return line
        following = (plain(below) for below in self._scanner.following(_LINES_TO_LEARN_FROM))
        return parse(number, data, self._prefixes) if self._prefixes.learn(line.text, following) else line

    def _handle(self, line: Line) -> bool:
        """Pass a line to the first reader that understands it; return False if it was irrelevant."""
        if (event := self._own.read(line.text)) is not None:
            return self._own.handle(line, event, self._scanner.following(1))
        if self._scanner.skipped and self._handle_recovered(line):
            return True
        if self._tracebacks.read(line):
            return True
        if self._catalogue.is_noise(line.text) or is_code(line.text):
            return False
        if is_restart(line.text):
            self._close_tracebacks()
            self._events.restart(line, job=loads_modules(line.text))
        if self._read_surroundings(line):
            return True
        (ending, in_summary), match = self._endings.read(line), self._match(line)
        has_cause = match is not None and match.signature.role is not SignatureRole.SUMMARY
        if ending is not None:
            self._record_ending(ending, in_summary=in_summary, has_cause=has_cause)
        if in_summary or (ending is not None and (ending.ordered or not has_cause)):
            return True
        if match is not None:
            by_scheduler = ending is not None and ending.by_scheduler
            return self._record_match(line, match, by_scheduler=by_scheduler)
        return self._handle_unknown(line)

    def _handle_recovered(self, line: Line) -> bool:
        """Read an exception whose traceback was left out, because very many begin like it."""
        if self._recovered >= _MOST_RECOVERED or lone(line) is None:
            return False
        above = self._scanner.preceding(_LINES_OF_A_TRACEBACK)
        begins = next((n for n, data in enumerate(above, 1) if b"Traceback (most recent" in data), 0)
        if not begins:
            return False
        self._recovered += 1
        assembly = Assembly(self._clock)
        for distance in range(begins, 0, -1):
            assembly.read(parse(line.number - distance, above[distance - 1], self._prefixes))
        if not assembly.is_open or not assembly.read(line):
            return False
        assembly.close()
        for reading in assembly.finished():
            if reading.links:
                self._conclude(reading)
        return True

    def _read_surroundings(self, line: Line) -> bool:
        """Read facts about the node and the job in a line, failed or not; return True if it has nothing
        else.
        """
        node_events = self._events.of(line.where)
        if node_events.collectives.read(line, self._scanner.preceding):
            return True
        if node_events.homes.read(line):
            return True
        if not node_events.facts and (facts := _FACTS.search(line.text)):
            node_events.facts.update({name: value for name, value in facts.groupdict().items() if value})
        return False

    def _match(self, line: Line) -> Match | None:
        """Return the match of a line; for exceptions that Ray re-raises, the end of the traceback shows
        more.
        """
        match = self._catalogue.match(line.text)
        handed_on = line.text.startswith(_HANDED_ON)
        quotes = handed_on and any(is_frame(plain(data)) for data in self._scanner.following(1))
        summed_up = self._catalogue["ray_task_error"]
        if match is not None and _AT_ITS_START in line.text:
            return Match(summed_up, 0, NOWHERE)
        if match is None or not handed_on or not (self._tracebacks.is_open or quotes):
            return match
        dead = match.signature.id.startswith("ray_")
        if dead and not any(_DEAD in data for data in self._scanner.following(_LINES_OF_A_TRACEBACK)):
            return match
        return self._catalogue.match_of(summed_up, line.text)

    def _record_ending(self, ending: Ending, *, in_summary: bool, has_cause: bool) -> None:
        """Record processes that ended, and their last output."""
        line = ending.line
        if is_about_a_pod(line.text):
            above = self._scanner.preceding(LINES_OF_A_DESCRIPTION)
            pod = pod_of(line.text, ending.where.pod, above)
            ending = replace(ending, places=(ending.where.filled(pod),))
        elif not in_summary and (ending.exit_code > 0 or not ending.by_scheduler):
            self._errors.record_last_words(line, ending.places)
        self._events.end(ending, has_cause=has_cause)
        if in_summary:
            self._tracebacks.announce(line, ending.where)

    def _record_match(self, line: Line, match: Match, *, by_scheduler: bool) -> bool:
        signature, role = match.signature, match.signature.role
        quoted = is_only_about_it(line.text) or is_quoted(line.text, match.position)
        if quoted and role is SignatureRole.CONSEQUENCE:
            return False
        mention = quoted or is_mild(line, signature)
        if self._around.show_it_passed(signature, line.text):
            return False
        if role is SignatureRole.CAUSE and not mention:
            mention = self._around.continues_without()
        if role is SignatureRole.CAUSE and mention:
            role = SignatureRole.SUSPECT
        if signature.below:
            following = self._scanner.following(_LINES_OF_A_REPORT)
            below = (text_of(data, self._prefixes) for data in following)
            match = self._catalogue.with_following(match, (line.text[match.position :], *below))
        raised = self._lone(line)
        where = _where(match, NOWHERE if _OF_AN_ACTORS_NODE in line.text else line.where)
        if raised is not None:
            where = where.filled(self._tracebacks.place_announced(line))
        if line.text.endswith(_STACK):
            self._stack = line.number + _LINES_OF_A_REPORT, where
        elif line.number < self._stack[0] and not by_scheduler:
            where = where.filled(self._stack[1])
        elif where.host is None and is_about_a_pod(line.text):
            above = self._scanner.preceding(LINES_OF_A_DESCRIPTION)
            where = where.filled(pod_of(line.text, where.pod, above))
        elif where == NOWHERE:
            where = pod_in_row(line.text)
        if signature.id == _GAVE_UP:
            self._errors.record_last_words(line, [where])
        kept = self._events.add(match, role, line, where, raised, writer=line.where)
        kept.mention = kept.mention and mention if kept.count > 1 else mention
        return kept.count < MOST_REPEATS

    def _lone(self, line: Line) -> Raised | None:
        """Return the exception that a line names without a traceback, with all of its message."""
        raised = lone(line, (parse(0, data, self._prefixes) for data in self._scanner.preceding(4)))
        if raised is not None:
            for number, data in enumerate(self._scanner.following(_LINES_OF_A_REPORT), line.number + 1):
                if not data.strip():
                    break
                below = parse(number, data, self._prefixes)
                if (
                    below.writer != line.writer
                    or opens(below.text)
                    or not extend_message(raised, below.text, below)
                ):
                    break
        return raised

    def _handle_unknown(self, line: Line) -> bool:
        """Read a line that matches no signature and may look like an error."""
        if not hints_at_error(line):
            return False
        if line.text[:1].isalpha() and self._around.is_of_a_warning():
            return False
        if raised := self._lone(line):
            match = Match(self._catalogue["python_exception"], 0, NOWHERE)
            uncaught = raised.innermost is not None or self._tracebacks.ends_a_twin(line)
            role = SignatureRole.CAUSE if uncaught else SignatureRole.SUSPECT
            self._events.add(match, role, line, line.where, raised)
            return False
        self._errors.record(line)
        return False

    def _conclude(self, chain: Traceback) -> None:
        """Make a finished traceback an event."""
        if chain.harmless:
            return
        if not chain.links or chain.is_wrapper:
            self._conclude_cut(chain)
            return
        raised, match, role = meaning_of(chain, self._catalogue)
        raised = replace(raised, script=chain.script)
        if role is SignatureRole.SUMMARY and (ending := ending_in(raised.line)):
            self._events.end(ending)
        unknown = not match.signature.patterns and not chain.fatal
        if unknown and self._events.suffered_before(chain.where):
            role = SignatureRole.SUSPECT
        match = self._catalogue.with_following(match, (line.text for line in raised.more))
        where = _where(match, chain.where.filled(raised.line.where))
        self._events.of(where).collectives.read(raised.line, self._scanner.preceding)
        doubtful = self._around.make_doubtful(chain)
        event = self._events.add(
            match, role, raised.line, where, raised, chain.start, chain.moment, doubtful=doubtful
        )
        event.mention = chain.mild and role is SignatureRole.SUSPECT
        if raised.text != chain.links[-1].text and not chain.root:
            event.ended_as = chain.links[-1].text
        if not chain.root and raised.handling and raised.text != chain.links[0].text:
            event.handling = chain.links[0].text

    def _match_above(self, chain: Traceback) -> tuple[Match, SignatureRole] | None:
        """Return the match before a traceback on its first line, unless it only introduces that."""
        match = self._catalogue.match(chain.lead)
        if match is not None and match.signature.role is SignatureRole.CAUSE:
            return match, SignatureRole.SUSPECT
        if match is None or ": " not in chain.lead[: match.position]:
            return None
        return (match, match.signature.role) if match.signature.role is SignatureRole.CONSEQUENCE else None

    def _conclude_cut(self, chain: Traceback) -> None:
        """Record a traceback that ends before the exception: at least it names a place."""
        frames = chain.frames
        if above := self._match_above(chain):
            match, role = above
            where = match.where.filled(chain.where)
            self._events.add(match, role, chain.opened_by, where, None, chain.start)
            return
        if not frames:
            return
        last, line = frames[-1], chain.last_line
        if last.is_launcher:
            signature = self._catalogue["master_unreachable" if _STORE.search(last.file) else "child_failed"]
            match, role, raised = Match(signature, 0, chain.where), signature.role, None
        elif chain.quoted:
            raised = Raised(chain.quoted, "", line, chain.place, (last,))
            match, role = Match(self._catalogue["python_exception"], 0, chain.where), SignatureRole.SUSPECT
        else:
            place = ("innermost", f"{last.file}:{last.line} in {last.function}")
            match = Match(self._catalogue["traceback_cut"], 0, chain.where, (place,))
            role, raised = SignatureRole.SUSPECT, Raised("", "", line, chain.place)
        self._events.add(match, role, line, chain.where, raised, chain.start, chain.moment)


def _where(match: Match, written: Location) -> Location:
    """Return the place that the words name, with the writer's unless that is another rank."""
    apart = match.signature.of_another or len({match.where.rank, written.rank} - {None}) > 1
    return match.where if apart else match.where.filled(written)
