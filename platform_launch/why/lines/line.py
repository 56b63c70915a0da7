"""One parsed line of a log: who wrote it, when, and what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from platform_launch.why.lines.literals import Guarded
from platform_launch.why.lines.location_patterns import gpu_of, host_of, ranks_within
from platform_launch.why.lines.prefixes import Prefixes, time_of, where_of
from platform_launch.why.note import Note

_SHOWN_CHARACTERS = 400
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
# Control characters and marks of writing direction: a log must not control the terminal that shows it.
_UNSHOWN = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")

_MILD = re.compile(
    r"\b(?:WARN(?:ING)?|INFO|DEBUG)\b|\|CCL_(?:WARN|INFO|DEBUG)\||\blevel=(?:warn|info|debug)|Warning:"
    r"|^\[(?:NeMo )?[WI] |^[WI] [\w./-]{1,50}:\d{1,6}\]|\[(?:info|debug|warning) {0,8}\]"
)
# What Python's warnings module writes, with the path of the file at any length before it.
_PYTHON_WARNS = re.compile(r"\S{1,400}\.py:\d{1,6}: \w{0,60}Warning: ")
# Whatever its level, the process continues: it tries again or does something else.
_CONTINUES = Guarded(
    r"(?<!to )\bfall(?:s|ing)? back\b"
    r"|\b(?:defaulting to|us(?:es|ing) (?:a |the )?(?:fallback|defaults?))\b"
    r"|(?<!be )(?<!pod, )\b(?:skipp|ignor)(?:ed|ing)\b(?<!\d skipped)(?<!were skipped)(?! explicit)"
    r"|\b(?:going to|using) \S{1,200} instead\b"
    r"|\bdisabling \w+ support\b|\bwill (?:be )?re-?tr(?:y|ied)\b|\bre-?try in \d|\b[1-9]\d* retries left\b"
    r"|(?<!not )(?<!after )(?<!stopped )"
    r"\b(?:re-?(?:trying|connecting)|(?:will try|trying) again|backing off)\b"
    r"|\btrying (?:(?:it |once )?with|a smaller|the next|batch size)\b"
    r"|\b(?:continuing|proceeding) (?:anyway|without)\b"
    r"|\bstill trying\b|will wait for recovery",
    any_case=True,
)
_NOT_THE_LAST = re.compile(r"(?i)\b(?:attempt|retry) (\d{1,4})(?:/| of )(?!\1\b)\d")
_LONGEST = 1000
# A warning of NCCL, of Neuron's copy of it and of Ray can be the reason of a failure.
_GRAVE_WARNINGS = ("NCCL WARN", "CCOM WARN", "has been marked dead", "Raylet is terminated: ")
# glog's signal handler writes at the level of warnings.
_CRASHED, _NEAR = "] *** SIG", 60
_GRAVE = ("E", "F", "ERROR", "CRITICAL")
# TensorFlow's and XLA's logger writes the severity after the time, or without a time.
_FATAL = re.compile(r"F [\w./-]{1,200}\.(?:cc|cu|h):\d{1,6}\] ")
YEAR_S = 366 * 86400.0


@dataclass(frozen=True)
class Location:
    """The process that wrote a line or that it is about, as far as the line says."""

    node: int | None = None
    host: str | None = None
    pod: str | None = None
    task: int | None = None
    worker: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    gpu: str | None = None

    def filled(self, other: Location) -> Location:
        """Return this with the unknown fields taken from ``other``."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        return Location(**{**vars(other), **known}) if known else other

    def __str__(self) -> str:
        return self.note.render("en")

    @property
    def note(self) -> Note:
        """What is known about it, as a note."""
        named = {
            "node": self.node, "pod": self.pod, "host": self.host, "task": self.task, "worker": self.worker,
            "rank": self.rank, "local rank": self.local_rank if self.rank is None else None, "GPU": self.gpu,
        }  # fmt: skip
        return Note("place", {name: value for name, value in named.items() if value is not None})


NOWHERE = Location()


@dataclass(frozen=True)
class Line:
    """A line: ``whole``, and without its prefixes (``text``).

    ``process`` is the place of the writer that the prefixes name, ``where`` adds what the text says about it;
    ``writer`` distinguishes writers, whether their place is known or not. ``time_s`` counts within a year,
    since half of the formats have no year. ``found`` holds the known prefixes by name.
    """

    number: int
    text: str
    whole: str
    process: Location
    where: Location
    time_s: float | None
    writer: str = ""
    found: dict[str, str] = field(default_factory=dict, compare=False)

    @cached_property
    def mild(self) -> bool:
        """Return whether its writer called it a warning or less."""
        return _is_mild(self.text, self.found)

    @property
    def grave(self) -> bool:
        """Return whether a mark before the text calls it an error."""
        return self.fatal or any(self.found.get(name) in _GRAVE for name in ("severity", "level", "loguru"))

    @property
    def fatal(self) -> bool:
        """Return whether a mark before the text calls it an error that ended the process."""
        return self.found.get("severity") == "F" or _FATAL.match(self.text) is not None

    @property
    def shown(self) -> str:
        """The line as it may be printed."""
        return shown(self.whole)

    def shown_at(self, position: int) -> str:
        """Return the part of the line that holds ``position`` of its text, as it may be printed."""
        position += len(self.whole) - len(self.text)
        if position < _SHOWN_CHARACTERS * 3 // 4:
            return self.shown
        return "…" + shown(self.whole[position - _SHOWN_CHARACTERS // 4 :])


_KNOWN_PREFIXES = Prefixes()


def parse(number: int, data: bytes, prefixes: Prefixes = _KNOWN_PREFIXES) -> Line:
    """Parse a line. Never fails: bytes that are not text become replacement characters."""
    whole = plain(data)
    prefix = prefixes.split(whole)
    process = Location(**where_of(prefix)) if prefix.writer or prefix.found else NOWHERE  # type: ignore[arg-type]
    text = prefix.text
    place: dict[str, object] = {**ranks_within(text)}
    if host := host_of(text):
        place["host"] = host
    if gpu := gpu_of(text):
        place["gpu"] = gpu
    where = process.filled(Location(**place)) if place else process  # type: ignore[arg-type]
    return Line(
        number,
        text,
        whole,
        process,
        where,
        time_of(prefix.found),
        prefix.writer,
        prefix.found,
    )


def text_of(data: bytes, prefixes: Prefixes) -> str:
    """Return a line's text alone, in a third of the time that parsing it takes."""
    return prefixes.split(plain(data)).text


def plain(data: bytes) -> str:
    """Return a line as text, without the escape sequences that colour it."""
    text = data.decode(errors="replace")
    return _ESCAPE.sub("", text) if "\x1b" in text else text


def shown(text: str) -> str:
    """Return a text that is safe to print: no control characters, limited length."""
    text = _UNSHOWN.sub("\N{REPLACEMENT CHARACTER}", text.expandtabs(4)).strip()
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def says_it_continues(text: str) -> bool:
    """Return whether a line says that its writer tries again, or does without what failed."""
    return _CONTINUES.search(text, _LONGEST) is not None


def _is_mild(text: str, found: dict[str, str]) -> bool:
    if _CRASHED in text[:_NEAR]:
        return False
    if says_it_continues(text) or _NOT_THE_LAST.search(text, 0, _LONGEST):
        return True
    if "severity" in found:
        return found["severity"] in "WI"
    if level := found.get("loguru") or found.get("level"):
        return level in ("WARNING", "INFO", "DEBUG", "TRACE", "SUCCESS")
    if _PYTHON_WARNS.match(text):
        return True
    return _MILD.search(text, 0, 60) is not None and not any(words in text for words in _GRAVE_WARNINGS)
