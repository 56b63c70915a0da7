"""One line of a log, taken apart: who wrote it, when, and what it says.

Prefixes are those of this launcher (``[node 1] ``), ``kubectl logs --prefix`` (``[pod/NAME/CONTAINER] ``),
torch (``[rank3]:``, glog's ``[E1121 03:04:05.123456 file.cpp:1]``), torchrun --tee (``[default0]:``),
``srun --label`` (``4: ``), Python's logging and ISO 8601 times, in any order and number.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

_SHOWN_CHARACTERS = 400
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
# Controls, and signs that turn the direction of writing: a log must not rule the terminal it is shown on.
_UNSHOWN = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")

_PREFIX = re.compile(
    r"""
      \[node[ ](?P<node>\d{1,6})\][ ]?
    | \[pod/(?P<pod>[\w.-]{1,253})/[\w.-]{1,253}\][ ]?
    | \[rank(?P<rank>\d{1,7})\]:[ ]?
    | \[(?:default|trainer|worker)(?P<local_rank>\d{1,5})\]:
    | [ ]{0,6}(?P<task>\d{1,6}):[ ](?!\s*\d*%)
    | (?:\[?|\()(?P<date>\d{4}-\d\d-\d\d)[T_ ](?P<iso>\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)
      (?:Z|[+-]\d\d:?\d\d)?(?:\]|\))?(?:[ ]-)?:?[ ]?
    | \[?(?P<severity>[EWIF])(?P<month>\d{1,2}?)(?P<day>\d\d)[ ](?P<glog>\d\d:\d\d:\d\d(?:\.\d{1,9})?)[ ]?
    | (?P<us>\d\d/\d\d/\d{4})[ ](?P<us_clock>\d\d:\d\d:\d\d)(?:[ ]-)?[ ]
    """,
    re.VERBOSE,
)
_NCCL_HOST = re.compile(r"([\w.-]+):\d+:\d+ \[\d+\] ")
_INNER_RANK = re.compile(r"\bRank (\d{1,7})\]")
_MILD = re.compile(r"\b(?:WARN(?:ING)?|INFO|DEBUG)\b|\w*Warning:|^\[[WI] ")
_DAYS_BEFORE = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)  # of a leap year: order is enough
YEAR_S = 366 * 86400.0


@dataclass(frozen=True)
class Where:
    """The process that a line is from, as far as its prefixes say."""

    node: int | None = None
    host: str | None = None
    pod: str | None = None
    task: int | None = None
    rank: int | None = None
    local_rank: int | None = None

    def filled(self, other: Where) -> Where:
        """Return this with what is unknown taken from ``other``."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        return dataclasses.replace(other, **known)

    def __str__(self) -> str:
        named = (("node", self.node), ("pod", self.pod), ("host", self.host), ("task", self.task))
        parts = [f"{name} {value}" for name, value in named if value is not None]
        if self.rank is not None:
            parts.append(f"rank {self.rank}")
        elif self.local_rank is not None:
            parts.append(f"local rank {self.local_rank}")
        return ", ".join(parts)


NOWHERE = Where()


@dataclass(frozen=True)
class Line:
    """A line: ``whole``, and without its prefixes (``text``).

    ``process`` is the writer that the prefixes name, ``where`` also takes what the text says of it.
    ``time_s`` counts within a year, since half of the formats do not tell the year. ``mild`` means that its
    writer called it a warning or less.
    """

    number: int
    text: str
    whole: str
    process: Where
    where: Where
    time_s: float | None
    mild: bool

    @property
    def shown(self) -> str:
        """The line as it may be printed."""
        return shown(self.whole)


def parse(number: int, data: bytes) -> Line:
    """Take a line apart. Never fails: what is not text becomes replacement characters."""
    whole = _ESCAPE.sub("", data.decode(errors="replace"))
    text = whole
    found: dict[str, str] = {}
    while (prefix := _PREFIX.match(text)) and prefix.end():
        for name, value in prefix.groupdict().items():
            if value is not None:
                found.setdefault(name, value)
        text = text[prefix.end() :]
    process = _where(found) if found else NOWHERE
    said = {}
    if host := _NCCL_HOST.match(text):
        said["host"] = host[1]
    if rank := _INNER_RANK.search(text):
        said["rank"] = rank[1]
    where = process.filled(_where(said)) if said else process
    return Line(number, text, whole, process, where, _time(found), _is_mild(text, found))


def shown(text: str) -> str:
    """Return a text that is safe to print: no control characters, not endless."""
    text = _UNSHOWN.sub("\N{REPLACEMENT CHARACTER}", text.expandtabs(4)).strip()
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _where(found: dict[str, str]) -> Where:
    numbers = {name: int(found[name]) for name in ("node", "task", "rank", "local_rank") if name in found}
    return Where(**numbers, host=found.get("host"), pod=found.get("pod"))


def _time(found: dict[str, str]) -> float | None:
    if "date" in found:
        month, day, clock = found["date"][5:7], found["date"][8:10], found["iso"]
    elif "glog" in found:
        month, day, clock = found["month"], found["day"], found["glog"]
    elif "us" in found:
        month, day, clock = found["us"][0:2], found["us"][3:5], found["us_clock"]
    else:
        return None
    if not 1 <= int(month) <= 12:
        return None
    hours, minutes, seconds = clock.replace(",", ".").split(":")
    days = _DAYS_BEFORE[int(month) - 1] + int(day) - 1
    return days * 86400.0 + int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def _is_mild(text: str, found: dict[str, str]) -> bool:
    if "severity" in found:
        return found["severity"] in "WI"
    # What NCCL calls a warning is the reason of its failure.
    return _MILD.search(text, 0, 60) is not None and "NCCL WARN" not in text
