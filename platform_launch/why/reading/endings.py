"""How processes ended: this launcher reports it in an event, other launchers and schedulers in their output.

They report where and how, by their own clocks, but never why.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from platform_launch.events import Event
from platform_launch.why.lines.line import NOWHERE, Line, Location
from platform_launch.why.lines.literals import PatternSet, index_of

# Events in which a node says how its training ended.
_OWN = frozenset({"training-failed", "training-killed"})
_SIGNALS = {
    "Killed": 9, "Bus error": 7, "Segmentation fault": 11, "Aborted": 6, "Illegal instruction": 4,
    "Floating point exception": 8, "Out Of Memory": 9, "Terminated": 15, "Trace/breakpoint trap": 5,
    "Hangup": 1, "Interrupt": 2, "Quit": 3, "User defined signal 1": 10, "User defined signal 2": 12,
    "Broken pipe": 13, "CPU time limit exceeded": 24, "File size limit exceeded": 25,
}  # fmt: skip
# Of schedulers and MPI, which report ends in the order in which they happen.
_BY_SCHEDULERS = (
    (
        r"srun: error: (?P<host>[\w.-]+): tasks? (?P<tasks>[\d,-]+): (?:Exited with exit code (?P<code>\d+)"
        rf"|(?P<name>{'|'.join(map(re.escape, _SIGNALS))})\b)"
    ),
    # The mpiexec of HPE Cray systems.
    (
        r"(?:(?<![\w.-])(?P<host>[A-Za-z][\w.-]{0,100}): )?\brank (?P<rank>\d{1,7}) "
        r"(?:died from signal (?P<signal>\d{1,2})|exited with code (?P<code>[1-9]\d{0,2}))\b"
    ),
    (
        r"\b[A-Za-z][\w.]{0,30} noticed that process rank (?P<rank>\d+) with PID \S+ "
        r"on node (?P<host>[\w.-]+) exited on signal (?P<signal>\d+)"
    ),
    r"exit status of rank (?P<rank>\d+): (?:killed by signal (?P<signal>\d+)|return code (?P<code>\d+))",
    # LSF's jsrun.
    (
        r"\(first noticed rank (?P<rank>\d+)\) terminated with "
        r"(?:signal (?P<signal>\d+)|(?:exit )?(?:code|status) (?P<code>[1-9]\d*))"
    ),
)
# Exit code and local rank, which is missing if several processes mixed their output.
TORCHRUN_LINE = re.compile(
    r"failed \(exitcode: (?P<code>-?\d+)\)"
    r"(?: (?:for binary \S.{0,300}? with )?local_rank: (?P<local_rank>\d+)\b)?"
)
_BY_LAUNCHERS = (
    TORCHRUN_LINE.pattern,
    # Of Kubernetes' training operator, with the pod's namespace.
    r"Pod: [a-z0-9-]{1,63}\.(?P<pod>[a-z0-9.-]{1,253}) exited with code (?P<code>[1-9]\d{0,2})\b",
    # Of a pod's description, and of its status in YAML.
    r"^[ \t]+(?:Exit Code|exitCode):[ \t]+(?P<code>[1-9]\d{0,2})\s*$",
    (
        r"\b(?:[Ee]xit(?:ed|s)|[Ee]nded|[Tt]erminated|[Ff]ailed|[Cc]rashed) with (?:an? )?"
        r"(?:exit |return |error |(?<!failed with )status )?(?:code|status)"
        r"(?: = |=|: | )`?(?P<code>-?[1-9]\d{0,2})\b"
    ),
    r"(?:returned non-zero exit status|\bAlgorithmError: Exit Code:|\bWEXITSTATUS) (?P<code>[1-9]\d*)",
    # Of Determined's master and Paddle's launcher.
    r"container failed with non-zero exit code: (?:.*\(exit code )?(?P<code>[1-9]\d{0,2})\b",
    r"Container rank (?P<rank>\d{1,7}) status failed .*\bcode (?P<code>-?[1-9]\d{0,2})\b",
    # Of a job's script, in which only a signal gives such a code.
    r"^(?!=  )\W{0,9}(?:[\w.]{1,20} ){0,3}(?i:exit[ _]?(?:code|status)) ?[:=] ?(?P<code>13[24-79]|143)\b",
    # Of text-generation-inference, whose shards are ranks.
    r"\bsignaled to shutdown with signal (?P<signal>[1-9]\d*)(?: rank=(?P<rank>\d{1,7}))?",
    r"(?:died with <Signals\.\w+:|\bWTERMSIG) (?P<signal>[1-9]\d*)\b",
    # Of torch.multiprocessing.
    (
        r"(?:process (?P<local_rank>\d{1,5}) )?terminated with signal "
        rf"(?P<signal_name>{'|'.join(signal.Signals.__members__)})\b"
    ),
    # SkyPilot's, one code per node.
    r"Job \d+(?:'s setup)? failed with return code list: \[(?P<codes>-?\d+(?:, ?-?\d+)*)\]",
)
_REPORTS = PatternSet(index_of((*_BY_SCHEDULERS, *_BY_LAUNCHERS)))
# What SkyPilot ended itself.
_CLEANED_UP = 137
# Not the one in a command's --local_rank: launchers print the last command that they started.
_RANK = re.compile(r"\b[Rr]ank:? (?P<rank>\d{1,7})\b")
# What launchers do to the remaining processes.
ENDED_ALONG = (-15, 143)
# Exit codes from here on are those of signals.
_FIRST_OF_SIGNALS = 128
_MOST_TASKS = 4096

# torchrun's summary of one node.
_ROOT = "Root Cause (first observed failure)"
_BLOCK_OPENS = re.compile(rf"ChildFailedError|^Failures:|^{re.escape(_ROOT)}")
_CUT_BLOCK = re.compile(r"\s*(?:(?:host|rank) {6}: |time {6}: \d{4}-\d\d-\d\d_)")
_BLOCK_FIELD = re.compile(r"\s*(time|host|rank|exitcode)\s*: (.*)")
_RANKS = re.compile(r"(\d+) \(local_rank: (\d+)\)")
_LONGEST_BLOCK_LINES = 2000
# An older mpirun prints its sentence on two lines.
_MPI_BEGUN = re.compile(r"noticed that process rank \d+ with PID \S+ on node [\w.-]+(?: exited(?: on)?)?\s*$")
# Reports of several lines name the process, then its end: hydra's, Open MPI's, PRRTE's and Horovod's.
_REPORT_OPENS = (
    "BAD TERMINATION OF ONE OF",
    "processes exited with non-zero status",
    "peer process has unexpectedly disconnected",
)
_REPORT_LINES = 16
_REPORT_NAMES = re.compile(
    r"=\s+(?:RANK (?P<rank>\d+) )?PID \d+ RUNNING AT (?P<host>\S+)"
    r"|Process name: (?:\[(?:\[\d+,\d+\],|\S{1,80}@\d+,))?(?P<named>\d+)(?:\]|$)"
)
# hydra writes a signal as if it were an exit code, and names the signal below the report.
_REPORT_ENDS = re.compile(
    r"=\s+(?:KILLED BY SIGNAL: (?P<signal>\d+)|EXIT CODE: (?P<hydra>\d+))|Exit code:\s+(?P<code>\d+)"
)
_HYDRA_SIGNAL = re.compile(rb"EXIT STRING: .*\(signal (?P<number>\d+)\)")
# Signals that end processes; if there is nothing below a report, the log was cut off before the signal's
# name.
_DEADLY = frozenset((4, 6, 7, 8, 9, 11, 15))
_FRAME = b"=\r\n "
# In srun's own lines, or with a reason that no task has, so that earlier kills do not count.
_ENDS_STEP = (
    "Job step aborted: Waiting up to", "srun: Terminating ", "_step_signal: Terminating",
    "DUE TO TIME LIMIT", "DUE TO PREEMPTION",
)  # fmt: skip
_ENDING_LINES = 300


@dataclass(frozen=True)
class Ending:
    """Processes that ended with an error. A negative ``exit_code`` is a signal.

    ``is_root``: a launcher considers it the first failure on this node, at ``time`` by its clock.
    ``by_scheduler``: srun or MPI reports it; ``ordered``: after the scheduler announced the end of the step.
    """

    exit_code: int
    places: tuple[Location, ...]
    line: Line
    is_root: bool = True
    time: str = ""
    by_scheduler: bool = False
    ordered: bool = False

    @property
    def where(self) -> Location:
        """The place of the first process."""
        return self.places[0]

    @property
    def was_cancelled(self) -> bool:
        """Return whether the scheduler ended the whole step."""
        return self.by_scheduler and (self.ordered or self.exit_code == -signal.SIGTERM)


class EndingReader:
    """Reads the ends reported in one log; some reports have several lines."""

    def __init__(self, following: Callable[[int], list[bytes]]) -> None:
        """``following`` returns up to so many lines of the log after the current one, nearest first."""
        self._following = following
        self._blocks: dict[Location, _SummaryBlock] = {}
        self._named: Location | None = None
        self._expects_until = 0
        self._begun = ""
        self._step_ended_at = -_ENDING_LINES

    def expects(self, number: int) -> bool:
        """Return whether a report has begun whose further lines mean nothing by themselves."""
        return bool(self._blocks) or number < self._expects_until

    def read(self, line: Line) -> tuple[Ending | None, bool]:
        """Return the end that a line reports, if any, and whether the line is part of torchrun's summary."""
        if _BLOCK_OPENS.search(line.text):
            self._blocks[line.process] = _SummaryBlock(line.text)
            return None, False
        if line.process not in self._blocks and _CUT_BLOCK.match(line.text):
            self._blocks[line.process] = _SummaryBlock(line.text)
        if block := self._blocks.get(line.process):
            ending = block.read(line)
            if block.done:
                del self._blocks[line.process]
            return ending, True
        return self._reported(line), False

    def _reported(self, line: Line) -> Ending | None:
        """Return the end that a line reports, perhaps together with those above it."""
        text = line.text
        if any(words in text for words in _REPORT_OPENS):
            self._expects_until = line.number + _REPORT_LINES
            self._named = NOWHERE
        if any(words in text for words in _ENDS_STEP):
            self._step_ended_at = line.number
        begun, self._begun = self._begun, text.strip() if _MPI_BEGUN.search(text) else ""
        if found := _REPORT_NAMES.search(text):
            rank = found["rank"] or found["named"]
            self._named = Location(host=found["host"], rank=int(rank) if rank else None)
        elif self._named is not None and (found := _REPORT_ENDS.search(text)):
            place, self._named = self._named, None
            code = self._hydra_code(int(found["hydra"])) if found["hydra"] else _code(found.groupdict())
            return Ending(_plain(code), (place,), line, is_root=False, by_scheduler=True)
        ended = line.number - self._step_ended_at < _ENDING_LINES
        return ending_in(line, f"{begun} {text.strip()}" if begun else text, step_ended=ended)

    def _hydra_code(self, code: int) -> int:
        """Return how a process ended, from the exit code in hydra's report and the lines below it."""
        below = self._following(_REPORT_LINES)
        number = next((int(match["number"]) for match in map(_HYDRA_SIGNAL.search, below) if match), 0)
        ends = not any(data.strip(_FRAME) and not data.startswith(b"=  ") for data in below)
        if number and code < _FIRST_OF_SIGNALS:
            return -number
        return -code if ends and code in _DEADLY else code


class _SummaryBlock:
    """torchrun's summary of one node, line by line; :attr:`done` at its end."""

    def __init__(self, opening: str) -> None:
        self.done = False
        self._is_root = _ROOT in opening
        self._fields: dict[str, str] = {}
        self._lines_left = _LONGEST_BLOCK_LINES

    def read(self, line: Line) -> Ending | None:
        """Return the ending that a line completes, None if there is none."""
        self._lines_left -= 1
        self.done = self._lines_left < 0 or (self._is_root and line.text.startswith("====="))
        found = _BLOCK_FIELD.match(line.text)
        if found is None:
            return None
        self._fields[found[1]] = found[2]
        code = re.match(r"-?\d+", found[2])
        if found[1] != "exitcode" or code is None:
            return None
        ranks = _RANKS.match(self._fields.get("rank", ""))
        rank, local_rank = (int(ranks[1]), int(ranks[2])) if ranks else (None, None)
        process = Location(host=self._fields.get("host"), rank=rank, local_rank=local_rank)
        time = self._fields.get("time", "").strip()
        return Ending(int(code[0]), (process.filled(line.where),), line, self._is_root, time)


def ending_of(event: Event, line: Line) -> Ending | None:
    """Return how this node's training ended, from an event of this launcher, None if it does not say."""
    if event.id not in _OWN:
        return None
    code = str(event.fields.get("exit_code", ""))
    name = str(event.fields.get("signal", ""))
    if event.id == "training-killed" and name in signal.Signals.__members__:
        return Ending(-signal.Signals[name], (line.where,), line)
    return Ending(int(code), (line.where,), line) if code.isascii() and code.isdigit() else None


def ending_in(line: Line, text: str = "", *, step_ended: bool = False) -> Ending | None:
    """Return the ending that a line reports by itself, None if it reports none.

    ``text`` is its text with that of the line above, if that had not ended; ``step_ended``: the scheduler had
    announced the end of the step.
    """
    for number, found in _REPORTS.matches(text or line.text):
        groups = {name: value for name, value in found.groupdict().items() if value}
        rank, local_rank = (int(groups[n]) if n in groups else None for n in ("rank", "local_rank"))
        place = Location(host=groups.get("host"), pod=groups.get("pod"), rank=rank, local_rank=local_rank)
        if number < len(_BY_SCHEDULERS):
            tasks = [Location(host=place.host, task=task) for task in _tasks(groups.get("tasks", ""))]
            places = tuple(tasks) or (place.filled(Location(host=line.where.host)),)
            ordered = groups.get("name") == "Killed" and step_ended
            code = _plain(_code(groups))
            return Ending(code, places, line, is_root=False, by_scheduler=True, ordered=ordered)
        if "codes" in groups:
            codes = [int(code) for code in groups["codes"].split(",")]
            failed = [node for node, code in enumerate(codes) if code not in (0, _CLEANED_UP)]
            if len(failed) > 1 or (not failed and any(codes[1:])):
                continue
            node = failed[0] if failed else 0
            return Ending(codes[node], (Location(node=node).filled(line.where),), line)
        named = _RANK.search(line.text) if local_rank is None else None
        named_rank = Location(rank=int(named["rank"])) if named else NOWHERE
        return Ending(_code(groups), (line.where.filled(place).filled(named_rank),), line)
    return None


def _code(groups: dict[str, str]) -> int:
    if groups.get("name"):
        return -_SIGNALS[groups["name"]]
    if groups.get("signal_name"):
        return -signal.Signals[groups["signal_name"]]
    return -int(groups["signal"]) if groups.get("signal") else int(groups["code"])


def _plain(code: int) -> int:
    """Return an exit code; some report it in the upper byte, like wait()."""
    return code >> 8 if code > 255 else code


def _tasks(text: str) -> Iterator[int]:
    """Yield the tasks of a list like ``0-3,7``."""
    bounds = (part.partition("-") for part in text.split(","))
    numbers = (n for one, _, last in bounds if one.isdigit() for n in range(int(one), int(last or one) + 1))
    return islice(numbers, _MOST_TASKS)
