"""How schedulers and MPI say that processes of a job ended: srun, mpirun, MPICH's hydra, PALS.

They tell where and how, in the order in which it happened, and never why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from platform_launch.why.lines.line import Line, Location
from platform_launch.why.reading.endings import FIRST_OF_SIGNALS

_SIGNALS = {
    "Killed": 9, "Bus error": 7, "Segmentation fault": 11, "Aborted": 6, "Illegal instruction": 4,
    "Floating point exception": 8, "Out Of Memory": 9, "Terminated": 15, "Trace/breakpoint trap": 5,
    "Hangup": 1, "Interrupt": 2, "Quit": 3, "User defined signal 1": 10, "User defined signal 2": 12,
    "Broken pipe": 13, "CPU time limit exceeded": 24, "File size limit exceeded": 25,
}  # fmt: skip
_SRUN = re.compile(
    r"srun: error: (?P<host>[\w.-]+): tasks? (?P<tasks>[\d,-]+): "
    r"(?:Exited with exit code (?P<code>\d+)|(?P<signal>" + "|".join(map(re.escape, _SIGNALS)) + r")\b)"
)
_MPI = (
    re.compile(
        r"\b[A-Za-z][\w.]{0,30} noticed that process "
        r"rank (?P<rank>\d+) with PID \S+ on node (?P<host>[\w.-]+) exited on signal (?P<number>\d+)"
    ),
    re.compile(
        r"exit status of rank (?P<rank>\d+): (?:killed by signal (?P<number>\d+)|return code (?P<code>\d+))"
    ),
    # Of LSF's jsrun.
    re.compile(
        r"\(first noticed rank (?P<rank>\d+)\) terminated with "
        r"(?:signal (?P<number>\d+)|(?:exit )?(?:code|status) (?P<code>[1-9]\d*))"
    ),
)
# Of the mpiexec of HPE Cray systems, with the host before it.
_PALS = re.compile(
    r"\brank (?P<rank>\d{1,7}) "
    r"(?:died from signal (?P<number>\d{1,2})|exited with code (?P<code>[1-9]\d{0,2}))\b"
)
_PALS_HOST = re.compile(r"([A-Za-z][\w.-]{0,100}): $")
_LONGEST_HOST = 103
# An older mpirun breaks its sentence over two lines.
_MPI_BEGUN = re.compile(r"noticed that process rank \d+ with PID \S+ on node [\w.-]+(?: exited(?: on)?)?\s*$")
_HYDRA_PLACE = re.compile(r"=\s+(?:RANK (?P<rank>\d+) )?PID \d+ RUNNING AT (?P<host>\S+)")
# It writes a signal or an exit code as it is, and names a signal below the report.
_HYDRA_END = re.compile(r"=\s+(?:KILLED BY SIGNAL: (?P<number>\d+)|EXIT CODE: (?P<code>\d+))")
_HYDRA_SIGNAL = re.compile(rb"EXIT STRING: .*\(signal (?P<number>\d+)\)")
# What processes die of; where nothing stands below a report, the log was cut off above the signal's name.
_DEADLY = frozenset((4, 6, 7, 8, 9, 11, 15))
_FRAME = b"=\r\n "
# Of Open MPI, of PRRTE, and Horovod's.
_MPI_NAME = re.compile(r"Process name: (?:\[(?:\[\d+,\d+\],|\S{1,80}@\d+,))?(?P<rank>\d+)(?:\]|$)")
_MPI_CODE = re.compile(r"Exit code:\s+(?P<code>\d+)")
_MOST_TASKS = 4096
_OPENS = (
    "BAD TERMINATION OF ONE OF",
    "processes exited with non-zero status",
    "peer process has unexpectedly disconnected",
)
_REPORT_LINES = 16
# In srun's own lines, or with a reason that no task has: so that what was killed before does not count.
_ENDS_STEP = (
    "Job step aborted: Waiting up to", "srun: Terminating ", "_step_signal: Terminating",
    "DUE TO TIME LIMIT", "DUE TO PREEMPTION",
)  # fmt: skip
_ENDING_LINES = 300
# What a training prints of its steps; a few of them come before all of its tasks have ended.
_PROGRESS = re.compile(
    rb"(?i)\b(?:steps?|epochs?|iter(?:ation)?s?|batch)\b\W{0,3}\d|\bloss\b[^\d\n]{0,12}\d|\d ?(?:it/s|s/it)\b"
    rb'|"POST /\S{0,100} HTTP/\d\.\d" 200\b'
)
FEW_STEPS = 10
# Nothing of the same process can follow such a line but what it had held back.
_LAST = re.compile(r"\b(?:FATAL|[Ff]atal|PANIC|[Pp]anic(?:ked)?)\b|^(?:\S{1,80} )?F\d{4} \d\d:\d\d:\d\d")
# What LSF, SageMaker, SkyPilot and Ray say of a job that ended well.
_SUCCESS = re.compile(
    rb"^Successfully completed\.\s*$|Reporting training SUCCESS\s*$"
    rb"|\(status: SUCCEEDED\)|Job '\S+' succeeded\s*$"
)


@dataclass(frozen=True)
class StepEnd:
    """Tasks of a job step that ended with an error; a negative ``exit_code`` is a signal.

    ``ordered``: they were killed after the scheduler had said that it ends the step.
    """

    exit_code: int
    places: tuple[Location, ...]
    line: Line
    ordered: bool = False

    @property
    def was_cancelled(self) -> bool:
        """Tell whether it ended because the scheduler ended the whole step."""
        return self.ordered or self.exit_code == -15


class StepReader:
    """Reads such lines of one log; some reports take two lines."""

    def __init__(
        self, preceding: Callable[[int], list[bytes]], following: Callable[[int], list[bytes]]
    ) -> None:
        """Each returns up to so many lines of the log before or after the current one, nearest first."""
        self._preceding, self._following = preceding, following
        self._named: Location | None = None
        self._expects_until = 0
        self._begun = ""
        self._step_ended_at: int | None = None

    def expects(self, number: int) -> bool:
        """Tell whether a report has begun that goes on for some lines, which by themselves tell nothing."""
        return number < self._expects_until

    def read(self, line: Line) -> StepEnd | None:
        """Return what a line says, None if it says nothing of the kind."""
        text = line.text
        if any(words in text for words in _OPENS):
            self._expects_until = line.number + _REPORT_LINES
            self._named = Location()
        if any(words in text for words in _ENDS_STEP):
            self._step_ended_at = line.number
        if found := _SRUN.search(text):
            code = int(found["code"]) if found["code"] else -_SIGNALS[found["signal"]]
            places = tuple(Location(host=found["host"], task=task) for task in _tasks(found["tasks"]))
            ordered = found["signal"] == "Killed" and self._ends(line.number)
            return StepEnd(code, places, line, ordered)
        if found := _PALS.search(text):
            named = _PALS_HOST.search(text[max(0, found.start() - _LONGEST_HOST) : found.start()])
            place = Location(host=named[1] if named else line.where.host, rank=int(found["rank"]))
            return StepEnd(_code(found), (place,), line)
        said = f"{self._begun} {text.strip()}" if self._begun else text
        self._begun = text.strip() if _MPI_BEGUN.search(text) else ""
        for pattern in _MPI:
            if found := pattern.search(said):
                host = found.groupdict().get("host")
                place = Location(host=host, rank=int(found["rank"]))
                return StepEnd(_code(found), (place,), line)
        if found := _HYDRA_PLACE.search(text) or _MPI_NAME.search(text):
            rank = int(found["rank"]) if found["rank"] else None
            self._named = Location(host=found.groupdict().get("host"), rank=rank)
        elif self._named is not None and (found := _HYDRA_END.search(text) or _MPI_CODE.search(text)):
            place, self._named = self._named, None
            return StepEnd(self._hydra_code(found), (place,), line)
        return None

    def _hydra_code(self, found: re.Match[str]) -> int:
        """Return how a process ended by what hydra's report calls its exit code, and by what stands below."""
        code, below = _code(found), self._following(_REPORT_LINES)
        if "number" not in found.groupdict() or code < 0:
            return code
        told = next((int(said["number"]) for said in map(_HYDRA_SIGNAL.search, below) if said), 0)
        ends = not any(data.strip(_FRAME) and not data.startswith(b"=  ") for data in below)
        if told and code < FIRST_OF_SIGNALS:
            return -told
        return -code if ends and code in _DEADLY else code

    def _ends(self, number: int) -> bool:
        """Tell whether a line still belongs to the step that the scheduler ended, not to a later training."""
        return self._step_ended_at is not None and number - self._step_ended_at < _ENDING_LINES


@lru_cache(maxsize=512)  # each error looks at the lines below the first one
def shows_work(line: bytes) -> bool:
    """Tell whether a line is one that a training prints while it goes on."""
    return _PROGRESS.search(line) is not None


def reports_end(text: str) -> bool:
    """Tell whether a line says that its process cannot go on."""
    return _LAST.search(text) is not None


def states_success(line: bytes) -> bool:
    """Tell whether a line is a scheduler's or a launcher's word that the job ended well."""
    return _SUCCESS.search(line) is not None


def _code(found: re.Match[str]) -> int:
    groups = found.groupdict()
    if groups.get("number"):
        return -int(groups["number"])
    code = int(groups["code"])
    return code >> 8 if code > 255 else code


def _tasks(text: str) -> Iterator[int]:
    """Yield the tasks of a list like ``0-3,7``."""
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit():
            continue
        for task in range(int(first), int(last or first) + 1):
            count += 1
            if count > _MOST_TASKS:
                return
            yield task
