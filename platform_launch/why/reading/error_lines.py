"""Lines of any program that report an error and match no signature."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from platform_launch.events import marked
from platform_launch.why.lines.line import Line, Location, parse, shown, text_of
from platform_launch.why.lines.literals import Guarded
from platform_launch.why.lines.prefixes import Prefixes
from platform_launch.why.lines.scan import Scanner
from platform_launch.why.messages.signatures import Catalogue, SignatureRole
from platform_launch.why.reading.assembly import HARMLESS
from platform_launch.why.reading.events import FirstError
from platform_launch.why.reading.log_events import LogEvents
from platform_launch.why.reading.work import shows_work

# Words of failure that are part of an option, a measured value or a count of zero.
_NEUTRAL = re.compile(
    r"""(?ix)
      \b(?:0|no|zero|without|any)[ ](?:\w{1,30}[ ]){0,2}(?:errors?|failures?|exceptions?)\b
    | (?<![\w-])--?\w[\w-]{0,60}[ =]["']?(?:errors?|fatal|critical|exceptions?)\b
    | (?<!\blevel)(?<!\blvl)(?<!severity)=[ ]?["'](?:error|fatal|critical)["']
    | (?-i:(?<![a-z])|(?![A-Z]))(?:error|exception|fail(?:ed|ure)?)s?(?:_\w{0,60})?["']?
      (?:[ ]\([^()]{1,60}\)(?=:))?
      (?: [ ]?=[ ]?["']?
          (?:[-+]?\d[\d.]*(?:e[-+]?\d+)?%?(?![\w:])|(?:none|null|false|nan)\b|ignore|replace|raise|\[\]|\{\})
        | [ ]?:[ ]?
          (?:0(?![\w.:])|(?:none|null|false|nan)\b|\[\]|\{\}|[-+]?\d*\.\d+(?:e[-+]?\d+)?%?(?![\w:]))
        | [ ]{2,}0(?=\s*$)
        | [ ]+(?:is[ ])?\d*\.\d+(?:e[-+]?\d+)?(?![\w:]) )
    """
)
_SAYS_SO = re.compile(
    r"""(?x)
      ^[\w.]{0,200}(?:Error|Exception)\b
    | \b(?:ERROR|FATAL|CRITICAL|SEVERE)\b
    | \[\s?(?i:err|error|fatal|critical)\s*\]
    | ^(?:\S{1,200}:\s)?(?i:(?:fatal|internal)\s)?(?i:error)\b
    | \b(?i:fatal|error|panic):(?=\s|$)
    | \b(?:level|lvl|severity)=["']?(?i:err|error|fatal|crit|critical|panic)\b
    | \bpanicked[ ]at\b | ^forrtl:[ ](?:severe|error) | ^Exception[ ]in[ ]thread\b
    | ^\s{0,8}what\(\):[ ] | ^[╭┌]─{1,9}[ ][\w ]{0,40}Error[ ]─
    | ^[\w./~-]{1,200}:[ ]line[ ]\d{1,6}:[ ]\S
    """
)
_HINTS = Guarded(
    r"(?<!raw_)error|\[ERR\]|(?<!non)(?<!non-)fatal|severe|fail(?:ed|ure)|exception|panic|abort|cannot"
    r"|unable to|unbound variable"
    r"|no such file|\bkilled:|unexpected EOF"
    r"|^\s{0,8}what\(\): ",
    any_case=True,
)
# Code that rich shows around a frame.
_CODE = re.compile(r"\s*[│┃]\s*(?:❱\s*)?\d{1,6}\s[│┃ ]")
# A logger's marks without their message.
_MARKS = re.compile(r"(?:\s*\[[^][]{0,200}\])+\s*")
# What could happen has not happened.
_SPECULATES = re.compile(r"\b(?:may|might|could)\b(?! not)|\bwill result in\b")
# Messages of torch's communication are about other processes as often as about its own.
_OF_PARTNERS = re.compile(
    r"\b(?:ProcessGroup\w{0,20}|TCPStore\w{0,10}|FlightRecorder|HeartbeatMonitor|socket)\.(?:cpp|hpp)\b"
)
_LONGEST = 2000
# Lines of launchers and libraries about how a process ended and not why; and progress bars.
_OF_LAUNCHERS = re.compile(
    r"""(?x)
      mpirun | mpiexec | NCCL[ ](?:INFO|WARN)
    | ^(?:srun:[ ]|slurmstepd:[ ]|-{5}|={5}|=[ ]{3}|\*{3}|Traceback|\s*File[ ]"|\s*[~^]+$|\+{1,5}[ ]\S)
    | ^\s*(?:error_file|exitcode|host|rank|time|traceback)\s*:
    | Process[ ]name: | non-zero | Primary[ ]job | exited[ ]with | \d%\|
    """
)
# How a process states in its last lines why it ends, without calling that an error.
_REFUSES = re.compile(
    r"(?i)\b(?:can(?:'|no|\s?no)t|could(?:n't|\snot)|fail(?:ed|s|ure)?|unable|giv(?:es?|ing)\sup|gave\sup|refus(?:ed|es|ing)"
    r"|reject(?:ed|s|ing)|not\s(?:found|supported|allowed|valid)|no\ssuch|invalid|unsupported|must\sbe|mismatch)\b"
)
# What only says that a process, a task or a container ended.
_OF_AN_END = re.compile(
    r"(?i)\b(?:container|job|launch|process|rank|script|task|trainers?|worker)s?\b.{0,60}?"
    r"\b(?:abort(?:ed|s)|crash(?:ed|es)|die[ds]|end(?:ed|s)|exit(?:ed|s|(?=[ ]with\b))|fail(?:ed|s))\b"
    r"(?! to\b|[^:]{0,80}: \w)"
)
# What precedes the message itself, and what may be drawn in between.
_RULE = re.compile(r"\s*[-=*_]{5,}\s*")
_INTRODUCES = re.compile(r"(?::|─[╮┐])\s*$")
# What C++ prints above an uncaught exception.
_TELLS = re.compile(r"[A-Za-z\d]{2}\W*\s\S*[A-Za-z\d]{2}")
_MOST_LOOKS_FOR_WORDS = 200
_LINES_OF_LAST_WORDS = 24
# Below a line that only introduces a message; a C++ exception's message may have several lines.
_LINES_OF_WORDS = 3


class ErrorLines:
    """Collects those of one log, and the last output of processes that ended."""

    def __init__(self, catalogue: Catalogue, scanner: Scanner, prefixes: Prefixes, events: LogEvents) -> None:
        self._catalogue = catalogue
        self._scanner = scanner
        self._prefixes = prefixes
        self._events = events
        self._looks_for_words = 0

    def record(self, line: Line) -> None:
        """Record a line that looks like an error and matches nothing else."""
        if introduces(line.text):
            below = self._scanner.following(_LINES_OF_WORDS)
            texts = (text for text in map(self._text_of, below) if text.strip() and not _RULE.fullmatch(text))
            first = next(texts, "").strip()
            known = self._catalogue.match(first)
            if self._catalogue.is_noise(first) or (known and known.signature.role is SignatureRole.CAUSE):
                return
        self._events.err(self._error_at(line, clear=reports_error(line)), line.where)

    def record_last_words(self, line: Line, places: Sequence[Location]) -> None:
        """Record the last line of one of the ended processes above the first report of an end."""
        node_events = self._events.of(line.where)
        if node_events.last_words is not None or self._looks_for_words >= _MOST_LOOKS_FOR_WORDS:
            return
        self._looks_for_words += 1
        behind = max(0, self._scanner.number - line.number)
        above = self._scanner.preceding(behind + _LINES_OF_LAST_WORDS)[behind:]
        parsed = ((parse(line.number - n, data, self._prefixes), data) for n, data in enumerate(above, 1))
        last = last_words(
            (one, data)
            for one, data in parsed
            if (one.writer == line.writer or _may_be_of(one.process, places))
            and not self._catalogue.is_noise(one.text)
            and marked(one.text) is None
        )
        if last is None:
            return
        words = self._error_at(last, clear=gives_reason(last))
        if len(places) == 1:
            words = replace(words, where=words.where.filled(places[0]))
        node_events.last_words = words
        if words.clear and self._catalogue.match(last.text) is None:
            self._events.err(words, line.where)

    def _error_at(self, line: Line, *, clear: bool) -> FirstError:
        """Return a line that looks like an error."""
        where = line.where.filled(self._events.source.where)
        return FirstError(self._events.source.name, line.number, line.shown, where, clear, shown(line.text))

    def _text_of(self, data: bytes) -> str:
        return text_of(data, self._prefixes)


def _may_be_of(writer: Location, places: Sequence[Location]) -> bool:
    """Return whether one of the ended processes may have written a line."""
    ranks = {place.rank for place in places} - {None}
    return writer.rank is None or not ranks or writer.rank in ranks


def hints_at_error(line: Line) -> bool:
    """Return whether a line looks like an error at all."""
    if line.mild or HARMLESS.match(line.text) or _CODE.match(line.text) or _MARKS.fullmatch(line.text):
        return False
    if line.grave or not _HINTS.search(line.text):
        return line.grave
    hints = _HINTS.search(_neutralised(line.text)) is not None
    if not hints or (perhaps := _SPECULATES.search(line.text)) is None or reports_error(line):
        return hints
    return _REFUSES.search(line.text, 0, perhaps.start()) is not None


def reports_error(line: Line) -> bool:
    """Return whether a line states that it is an error."""
    if _OF_PARTNERS.search(line.text) or _OF_AN_END.search(line.text, 0, _LONGEST):
        return False
    return line.grave or _SAYS_SO.search(_neutralised(line.text)) is not None


def last_words(above: Iterable[tuple[Line, bytes]]) -> Line | None:
    """Return what a process wrote before its end: the first error in its last lines, else the last line.

    None if it worked until then, or wrote nothing. ``above`` holds the lines above the report of its end,
    nearest first.
    """
    telling: list[Line] = []
    for line, data in above:
        if shows_work(data):
            break
        text = line.text[:_LONGEST]
        is_error = _TELLS.search(text) is not None and not line.mild
        is_error = is_error and (bool(telling) or not introduces(text))
        if is_error and not _OF_LAUNCHERS.search(text) and not _OF_AN_END.search(text):
            telling.append(line)
    for is_wanted in (reports_error, gives_reason):
        if errors := [line for line in telling if is_wanted(line)]:
            return errors[-1]
    return next(iter(telling), None)


def gives_reason(line: Line) -> bool:
    """Return whether this line, as a process's last one, gives the reason for its end."""
    text = line.text[:_LONGEST]
    return reports_error(line) or _REFUSES.search(text) is not None


def introduces(text: str) -> bool:
    """Return whether a line only introduces what the one below it says."""
    return _INTRODUCES.search(text) is not None


@lru_cache(maxsize=1)  # the same line is checked more than once
def _neutralised(text: str) -> str:
    return _NEUTRAL.sub(" ", text[:_LONGEST])
