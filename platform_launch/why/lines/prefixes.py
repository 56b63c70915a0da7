"""The prefixes of a log's lines: who wrote them, when, how serious. Unknown forms are learned from the log.

Known are those of this launcher, torch and torchrun, Kubernetes, Slurm, MPI, Ray, SkyPilot, journald, the
kernel and common loggers, in any order and number. Any other is learned from a Python traceback: text that
precedes its first line and its frames alike is this log's prefix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date

from platform_launch.why.lines.location_patterns import FILE_NODE, FILE_RANK, host_of, place_in
from platform_launch.why.lines.vocabulary import has_telling_word

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_LEAP_YEAR = 2000

# Of several ranks, which are not a place: "Rank 0 - 7: ".
_FURTHER = r"\d{1,7}(?:[ ]?[:|,][ ]|[ ](?:-|and|to)[ ])"

# What mpirun and horovodrun put before their tag if they print the time.
_TAGGED_AT = r"(?:[A-Z][a-z]{2}[ ][A-Z][a-z]{2}[ ]{1,2}\d{1,2}[ ]\d\d:\d\d:\d\d[ ]\d{4})?"

_KNOWN = re.compile(
    rf"""
      [^\s:]{{1,200}}:[ ]line[ ]\d{{1,6}}:[ ]{{1,6}}\d{{1,10}}[ ](?=[A-Z])
    | (?:>[ ](?![ ]{{5}})|[#][ ](?=\[)){{1,3}}
    | ErrorMessage[ ]"(?=\S)
    | \[node[ ](?P<node>\d{{1,6}})\][ ]?
    | \[pod/(?P<pod>[\w.-]{{1,253}})/[\w.-]{{1,253}}\][ ]?
    | \[(?P<pod__replica>[a-z0-9][a-z0-9.-]{{2,100}}-(?:chief|launcher|master|ps|worker)-\d{{1,5}})\][ ]
    | [ ]{{0,8}}\[rank[ :=]?(?P<rank>\d{{1,7}})\]:?[ ]?
    | (?:[Rr]ank|RANK)[ =]?(?P<rank__word>\d{{1,7}})[ ]?(?:[:|]|[,-](?![ ]{_FURTHER}))[ ]
    | \((?:[Rr]ank|RANK)[ =:]?[ ]?(?P<rank__aside>\d{{1,7}})\)[ ]
    | (?:\(worker_|\[?[Ww]orker[ ])(?P<worker>\d{{1,5}})(?:\)|\]:?|:)[ ]
    | \[(?:default|trainer|worker)(?P<local_rank>\d{{1,5}})\]:
    | {_TAGGED_AT}\[(?:[\w@.-]{{1,200}}@)?\d{{1,6}},(?P<rank__mpi>\d{{1,7}})\](?:<std(?:out|err|diag)>)?:[ ]?
    | \[\d{{1,6}},mpirank:(?P<rank__aws>\d{{1,7}}),(?P<host__algo>[\w.-]{{1,100}})\]<std(?:out|err)>:[ ]?
    | \[(?P<host__ompi>[A-Za-z][\w.-]{{0,100}})\]\[\[\d+,\d+\],(?P<rank__ompi>\d{{1,7}})\]
      (?:\[[\w./:]{{1,100}}\])?[ ]?
    | {_TAGGED_AT}\[(?P<rank__horovod>\d{{1,7}})\]<std(?:out|err)>:[ ]?
    | \((?P<labels>(?:VllmWorker[ ])?(?:[\w.<>/+:-]|\([\w.<>/-]{{1,80}}\)){{0,160}}?
      ,?[ ]?(?:rank|pid|ip)=[\w.:+-]{{1,80}}
      (?:,?[ ](?:rank|pid|ip|node|repr|actor_id)=[\w.:+-]{{1,80}}){{0,4}})\)[ ]?
    | (?P<fields>(?:(?:node|host(?:name)?|(?:local_)?rank|worker|gpu|pid)=[\w.:-]{{1,100}}[ ]){{2,6}})
    | \((?P<raylet>raylet|gcs_server|autoscaler)[^()]{{0,80}}\)[ ]?
    | [0-9a-f]{{8}}[ ]\|\|[ ]
    | E[ ]{{3}}(?:[ ]{{4}})?(?=\S|[ ]{{2}}\S)
    | [│┃|][ ](?=[\w.-]{{1,100}}:\d+:\d+[ ]\[\d+\][ ])
    | [ ]{{0,4}}\|[ ](?=\d{{4}}-\d\d-\d\d[T ]\d\d:\d\d:)
    | [ ]{{0,6}}(?P<task>\d{{1,6}}):[ ](?!\s*\d*%|\[[\w./]{{0,200}}(?i:allreduce|allgather|broadcast))
    | (?P<file>[\w./=@-]{{1,200}}\.(?:log|out|err|txt|stdout|stderr)):(?:\d{{1,9}}:)?(?=\S)
    | \[(?!(?i:(?:cuda|epoch|iter|npu|rank|step|xpu)[_-]?\d*):)
      (?P<host__numbered>(?=[\w.-]*\d)[A-Za-z][\w.-]{{1,100}}):\d{{1,4}}\]:
    | slurmstepd-(?P<host__slurmstepd>[\w.-]{{1,100}}):[ ](?=error)
    | (?!(?:step|epoch|iter|iteration|batch|gpu|fold|level|stage|phase|part|seed|run|exp|attempt|test|layer)-)
      (?P<host>[a-z][a-z0-9]{{0,40}}(?:-[a-z0-9]{{1,40}}){{0,6}}-\d{{1,5}}
        |(?:cn|compute|gn|nid|node|worker)\d{{1,6}}):[ ]
    | std(?:out|err):[ ](?=\S|[ ]{{2}}\w)
    | (?P<host__address>\d{{1,3}}(?:\.\d{{1,3}}){{3}})(?::|[ ]\[(?P<worker__xla>\d{{1,5}})\])[ ]
    | (?:\[?|\()(?P<date>\d{{4}}-\d\d-\d\d)[T_ ](?P<iso>\d\d:\d\d:\d\d(?:[.,]\d{{1,9}})?)
      (?:Z|[ ]?(?:UTC|[+-]\d\d:?\d\d))?
      (?:[ ]?(?P<worker__dp>[TDPEC]P\d{{1,4}}(?:[ ][TDPEC]P\d{{1,4}}){{0,4}}))?
      (?:\]|\))?(?:[ ]-(?=[ ]))?:?(?:[ ]|\t)?
      (?:std(?:out|err)[ ][FP](?:[ ]|$)
      |(?P<host__unit>[A-Za-z][\w.-]{{0,100}})[ ][\w./@-]{{1,100}}\[\d{{1,10}}\]:(?:[ ]|$))?
    | \|[ ](?P<loguru>[A-Z]{{4,8}})[ ]*\|[ ](?:[\w.<>/]{{1,200}}:[\w.<>]{{1,200}}:\d{{1,6}}[ ]-[ ])?
    | (?P<level>ERROR|WARNING|INFO|DEBUG)[ ]\d\d-\d\d[ ]\d\d:\d\d:\d\d[ ]\[?[\w./-]{{1,80}}:\d{{1,6}}\][ ]
    | \[?(?P<severity>[EWIF])[ ]?(?P<month>\d{{1,2}}?)-?(?P<day>\d\d)[ ]
      (?:00:00:\d{{10}}\.\d{{6}}|(?P<glog>\d\d:\d\d:\d\d(?:\.\d{{1,9}})?))[ ]?
    | (?P<us>\d\d/\d\d/\d{{4}})[ ](?P<us_clock>\d\d:\d\d:\d\d)(?:[ ]-)?[ ]
    | \[?(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[ ])?(?P<mon>{"|".join(_MONTHS)})[ ]{{1,2}}(?P<mday>\d{{1,2}})[ ]
      (?P<syslog>\d\d:\d\d:\d\d(?:\.\d{{1,9}})?)(?:[ ]\d{{4}})?\]?[ ]?
      (?:(?P<host__syslog>[A-Za-z0-9][\w.-]{{0,100}})[ ][\w./@:-]{{1,100}}?(?:\[\d{{1,10}}\])?:[ ])?
    | \[[ ]{{0,5}}\d{{1,10}}\.\d{{3,9}}\][ ]
    | \d\d:\d\d:\d\d[ ](?=\[(?:INFO|SUCCESS|WARN|ERROR)\][ ]|==[ ])
    | \[\d\d:\d\d:\d\d(?P<worker__clocked>(?:[ ][A-Z]{{1,4}}\d{{1,4}}){{0,5}})\][ ]
    """,
    re.VERBOSE,
)
# What a log collector puts before every line.
_LEVEL = r"(?:ERROR|INFO|WARNING|WARN|DEBUG|CRITICAL)"
_LABEL = re.compile(
    rf"""
    (?:{_LEVEL}[ ](?=\[))?
    (?: \[(?=[^][]{{0,80}}\w)[^][]{{1,80}}\](?::[ ]?|[ ]|(?=\[)|$)
      | [\w./@:-]{{1,80}}[ ]{{0,24}}[|│](?:[ ]|$)
      | (?!python|[\da-f]{{16}}:|\w+\.(?:py|sh|cu|cc?|cpp)\b)(?=[\w.@-]{{0,80}}\d)[\w.@-]{{1,80}}[:>](?:[ ]|$)
      | [a-z0-9][a-z0-9-]{{1,60}}-[a-z0-9]{{5}}[ ][a-z][\w-]{{0,60}}(?:[ ]|$)
      | [\w.:+-](?:[\w .:+-]{{0,60}}[\w.:+-])?\t
      | (?:\d{{2,4}}[/-]\d\d[/-]\d\d[ ])?\d\d:\d\d:\d\d(?:[.,]\d{{1,9}})?(?:[ ]|$)
      | (?:-[ ])?[A-Za-z_][\w.]{{0,60}}[ ]-[ ]{_LEVEL}[ ]-(?:[ ]|$)
      | [a-z]\w{{0,40}}/\d{{1,5}}[ ](?=\[)
    )(?:{_LEVEL}[ ])?(?:-[ ])?
    """,
    re.VERBOSE,
)
_LEVELS = re.compile(_LEVEL)
_FEWEST_LABELLED = 2
_TRACEBACK = re.compile(r"(?<!Original )Traceback \(most recent call last\)")
_FRAME = re.compile(r'  File "[^"]+", line \d+, in ')
# The last line of a traceback whose first lines are not in the log, after one word: a host's name.
_ENDS_TRACEBACK = re.compile(r"(?<=\w: )(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): ")
_NEXT_IN_TRACEBACK = re.compile(r"[ \t]{2,}\S|[ \t]+File ")
_VARYING = re.compile(
    r"\d[\dA-Fa-f]*|[A-Fa-f]+\d[\dA-Fa-f]*|\s+|\b(?:ERROR|INFO|WARNING|WARN|DEBUG|CRITICAL|FATAL|TRACE)\b|\b(?:"
    + "|".join(_MONTHS)
    + r")\b"
)
# What changes from line to line: times, floats, columns that count.
_FLEETING = re.compile(
    r"\d{4}-\d\d-\d\d|\d+:\d\d:\d\d(?:[.,]\d+)?|\d+\.\d+s\s+\d+\b|\d+\.\d+s?\b|\d+\t|\b[A-Z]{4,8}\b"
)
_HOST_FIELD = re.compile(r"\b(?:node|host(?:name)?)=([A-Za-z][\w.-]*)")
_WARNS = re.compile(r"\bWARN(?:ING)?\b")
_LONGEST_HEAD = 200
_MOST_LEARNED = 24
# It numbers nodes and calls them ranks.
_SKYPILOT = re.compile(r"(?:head|worker\d*), rank=")
_OLD_SKYPILOT = re.compile(r"node-(\d{1,6}) pid=")
# CMake's tests number their output in the way in which srun numbers tasks; this line is above it.
_CTEST = re.compile(r"Test (?:command|timeout computed to be): ")
# A worker for a part of a model, in vLLM's words.
_PARALLEL_WORKER = re.compile(
    r"(?:(?:Vllm)?[Ww]orker|EngineCore)((?:[_ ][TDPEC]P\d{1,4}){1,4})\b|(EngineCore_\d{1,4})\b"
)


@dataclass
class Prefix:
    """The prefix of one line: ``found`` by the names of the known forms, and the ``writer``.

    ``place`` is the writer's, as far as labels and forms learned from the log show it.
    """

    text: str
    found: dict[str, str] = field(default_factory=dict)
    place: dict[str, str | int] = field(default_factory=dict)
    writer: str = ""


class Prefixes:
    """The prefixes of one log."""

    def __init__(self) -> None:
        self._learned: list[re.Pattern[str]] = []
        self._sources: set[str] = set()
        self._of_collector: set[str | None] = set()  # levels that are on all lines
        self._tests: set[str] = set()  # whose numbers are not those of tasks

    def split(self, whole: str) -> Prefix:
        """Split the prefixes from a line."""
        prefix = Prefix(whole)
        while self._strip_known(prefix) or self._strip_learned(prefix):
            pass
        for name in ("loguru", "level"):
            if prefix.found.get(name) in self._of_collector:
                del prefix.found[name]
        if (number := prefix.found.get("task")) is not None:
            if _CTEST.match(prefix.text):
                self._tests.add(number)
            if number in self._tests:
                del prefix.found["task"]
        return prefix

    def learn(self, text: str, following: Iterable[str]) -> bool:
        """Learn what precedes a traceback's line if it precedes a later one, too; return whether it does.

        ``text`` is the line without its known prefixes, ``following`` the next lines of the log, whole.
        """
        opening = _TRACEBACK.search(text) or _FRAME.search(text) or _ENDS_TRACEBACK.search(text)
        if opening is None or not 0 < opening.start() <= _LONGEST_HEAD or len(self._learned) >= _MOST_LEARNED:
            return False
        head = self._unknown_part(text[: opening.start()])
        if not head.strip() or not re.search(r"\w", head):
            return False
        source = _template(head)
        template = re.compile(source)
        if source in self._sources:
            return False
        for line in following:
            rest = self.split(line).text
            repeated = template.match(rest)
            if (
                repeated
                and repeated.end()
                and _NEXT_IN_TRACEBACK.match(self._known_off(rest[repeated.end() :]))
            ):
                self._learned.append(template)
                self._sources.add(source)
                return True
        return False

    def survey(self, lines: Iterable[str]) -> None:
        """Learn the common beginning of neighbouring lines, if it only names their writer."""
        split = [self.split(line) for line in lines if line.strip()]
        rests = [prefix.text for prefix in split]
        levels = {prefix.found.get("loguru") or prefix.found.get("level") for prefix in split}
        if len(levels) == 1 and any(map(_FRAME.match, rests)):
            self._of_collector |= levels - {None}
        if len(rests) < _FEWEST_LABELLED or host_of(rests[0]) or len(self._learned) >= _MOST_LEARNED:
            return
        end = 0
        while (label := _LABEL.match(rests[0], end)) and not (end and _KNOWN.match(rests[0][end:])):
            end = label.end()
        labels = rests[0][:end]
        names, source = _LEVELS.sub("", labels), _template(labels)
        if not re.search(r"\w", names) or has_telling_word(names.encode()) or source in self._sources:
            return
        template = re.compile(source)
        if all(template.match(rest) for rest in rests):
            self._learned.append(template)
            self._sources.add(source)

    def _strip_known(self, prefix: Prefix) -> bool:
        known = _KNOWN.match(prefix.text)
        if known is None or not known.end():
            return False
        names = {name: value for name, value in known.groupdict().items() if value}
        for name, value in names.items():
            prefix.found.setdefault(name, value)
        # Of nested labels the inner ones are nearer.
        fields = names.get("fields", "")
        prefix.place.update(_labelled(names.get("labels", "") or fields))
        if named := _HOST_FIELD.search(fields):
            prefix.place["host"] = named[1]
        who = [value for name, value in names.items() if _field_of(name) in _IDENTITIES]
        prefix.writer += "".join(f"{value};" for value in who)
        prefix.text = prefix.text[known.end() :]
        return True

    def _strip_learned(self, prefix: Prefix) -> bool:
        for template in self._learned:
            known = template.match(prefix.text)
            if known is None or not known.end():
                continue
            head = known[0]
            prefix.writer += _FLEETING.sub("", head).strip() + ";"
            if _WARNS.search(head):  # a log collector calls all lines INFO or ERROR
                prefix.found.setdefault("level", "WARNING")
            prefix.place = {**place_in(head), **prefix.place}
            prefix.text = prefix.text[known.end() :]
            return True
        return False

    def _unknown_part(self, head: str) -> str:
        """Return a head without the known prefixes at its end."""
        for start in range(1, len(head)):
            if head[start - 1] in " \t])|>" and not self._known_off(head[start:]):
                return head[:start]
        return head

    def _known_off(self, text: str) -> str:
        prefix = Prefix(text)
        while self._strip_known(prefix):
            pass
        return prefix.text


# A group's name is the field of Location that it gives, perhaps with the writer after two underscores.
_NUMBERS = frozenset(("node", "task", "rank", "local_rank"))
_NAMES = frozenset(("host", "worker", "pod"))
_IDENTITIES = _NUMBERS | _NAMES | {"labels", "fields", "raylet", "file"}


def _field_of(group: str) -> str:
    return group.partition("__")[0]


def where_of(prefix: Prefix) -> dict[str, str | int]:
    """Return the place in prefixes, by the names of Location's fields."""
    place: dict[str, str | int] = {}
    for name, value in prefix.found.items():
        if (field_name := _field_of(name)) in _NUMBERS:
            place.setdefault(field_name, int(value))
        elif field_name in _NAMES:
            place.setdefault(field_name, value.strip())
    for field_name, pattern in (("rank", FILE_RANK), ("node", FILE_NODE)):
        if named := pattern.search(prefix.found.get("file", "")):
            place.setdefault(field_name, int(named[1]))
    return {**prefix.place, **place}


def _labelled(labels: str) -> dict[str, str | int]:
    """Return the place in labels in round brackets, as Ray, SkyPilot and vLLM write them."""
    place = place_in(labels) if labels else {}
    if "rank" in place and _SKYPILOT.match(labels):
        place["node"] = place.pop("rank")
    if counted := _OLD_SKYPILOT.match(labels):
        place["node"] = int(counted[1])
    if worker := _PARALLEL_WORKER.match(labels):
        place["worker"] = worker[2] or worker[1].strip("_ ").replace("_", " ")
    return place


def time_of(found: dict[str, str]) -> float | None:
    """Return the time in prefixes, in seconds within a (leap) year."""
    if "date" in found:
        month, day, clock = int(found["date"][5:7]), found["date"][8:10], found["iso"]
    elif "glog" in found:
        month, day, clock = int(found["month"]), found["day"], found["glog"]
    elif "us" in found:
        month, day, clock = int(found["us"][0:2]), found["us"][3:5], found["us_clock"]
    elif "mon" in found:
        month, day, clock = _MONTHS.index(found["mon"]) + 1, found["mday"], found["syslog"]
    else:
        return None
    if not 1 <= month <= 12:
        return None
    hours, minutes, seconds = clock.replace(",", ".").split(":")
    days = (date(_LEAP_YEAR, month, 1) - date(_LEAP_YEAR, 1, 1)).days + int(day) - 1
    return days * 86400.0 + int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def _template(head: str) -> str:
    """Return a pattern for prefixes of the same form: numbers, times and levels may differ."""
    parts, end = [], 0
    for varying in _VARYING.finditer(head):
        parts.append(re.escape(head[end : varying.start()]))
        text = varying[0]
        if text.isspace():
            # Only the last space belongs to the prefix, since the text may be indented.
            last = varying.end() == len(head)
            parts.append(f"(?:{re.escape(text)}|$)" if last else r"[ \t]+")
        elif text[0].isdigit() or any(sign.isdigit() for sign in text):
            parts.append("[0-9A-Fa-f]+")
        else:
            parts.append(r"[A-Za-z]+")
        end = varying.end()
    parts.append(re.escape(head[end:]))
    return "".join(parts)
