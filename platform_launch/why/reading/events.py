"""What one log shows: the events of its last episode, in constant memory.

A training survives many of the errors that it prints. So events are grouped into episodes, separated by
ordinary output; the latest one with a cause is the one that the training did not survive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from platform_launch.why.lines.clock import LineTime
from platform_launch.why.lines.line import NOWHERE, Location
from platform_launch.why.lines.location_patterns import names_a_machine
from platform_launch.why.messages.exceptions import Raised
from platform_launch.why.messages.signatures import Signature, SignatureRole
from platform_launch.why.reading.collectives import Collectives
from platform_launch.why.reading.endings import Ending
from platform_launch.why.reading.homes import Homes
from platform_launch.why.reading.work import reports_end

SURVIVED_LINES = 300
MOST_REPEATS = 1000
_MOST_EVENTS = 500
_MOST_SURVIVED = 20
_MOST_WHERES = 4096
# Of an uncaught C++ exception; more of its message may be on the lines below.
SAYS_WHAT = re.compile(r"\s{0,8}what\(\):\s+")


@dataclass
class Occurrence:
    """One thing that happened: the first line that shows it, and how many more do.

    ``mention``: its writer calls it a warning, or quotes it in a line about something else. ``last`` is the
    last line that shows it, ``suffered_at`` the first one below a cause that shows a consequence for others.
    ``doubtful``: a traceback that may be quoted, or survived.
    """

    signature: Signature
    role: SignatureRole
    log: str
    number: int
    start: int
    shown: str
    where: Location
    raised: Raised | None = None
    ended_as: str = ""
    handling: str = ""
    moment: LineTime = field(default_factory=LineTime)
    count: int = 1
    wheres: set[Location] = field(default_factory=set)
    details: dict[str, str] = field(default_factory=dict)
    mention: bool = False
    doubtful: bool = False
    of_one_process: bool = True
    last: int = 0
    suffered_at: int = 0

    def __post_init__(self) -> None:
        self.wheres.add(self.where)
        self.last = self.last or self.number

    @property
    def kind(self) -> tuple[str, str]:
        """What it shows: its signature, and the exception if the signature leaves that open.

        The number of its own rank in the message makes no difference.
        """
        text = self.raised.text if self.raised and not self.signature.patterns else ""
        rank = self.where.rank
        return self.signature.id, text if rank is None else re.sub(rf"\[(?:[Rr]ank ?)?{rank}\]", "[]", text)

    @property
    def is_proof(self) -> bool:
        """Return whether it is an exception with a traceback that ended a process other than a launcher."""
        raised = self.raised
        if self.role is not SignatureRole.CAUSE or raised is None or not raised.has_frames or self.doubtful:
            return False
        return raised.innermost is None or not raised.innermost.is_launcher

    def repeat(self, other: Occurrence) -> None:
        """Count another line that shows the same."""
        self.count += other.count
        self.last = max(self.last, other.last)
        if not self._is_repeated_by(other):
            self.of_one_process = False
        self.details = {**other.details, **self.details}
        if len(self.wheres) < _MOST_WHERES:
            self.wheres |= other.wheres
        if self.where == NOWHERE:
            self.where = other.where
        may_be_same = self.where.rank is None and self.where.local_rank in (None, other.where.local_rank)
        if other.where.rank is not None and (may_be_same or other.where.rank == self.where.rank):
            self.where = self.where.filled(other.where)
        elif other.where.rank == self.where.rank:
            self.where = self.where.filled(replace(NOWHERE, gpu=other.where.gpu))

    def _is_repeated_by(self, other: Occurrence) -> bool:
        """Return whether another line only repeats it, as below a process's own traceback."""
        mine, others = self.raised, other.raised
        if mine is None or (mine.frame is None and not 0 <= other.number - self.number <= 1):
            return False
        return others is None or (others.frame is None and others.text != mine.text)


@dataclass(frozen=True)
class FirstError:
    """A line without a signature that looks like an error; ``clear`` if it says so itself.

    ``message`` is its text without prefixes.
    """

    log: str
    number: int
    shown: str
    where: Location
    clear: bool
    message: str = ""


@dataclass
class Episode:
    """Events in close succession."""

    events: dict[tuple[str, str], Occurrence] = field(default_factory=dict)
    endings: list[Ending] = field(default_factory=list)
    last_line: int = 0

    def add(self, event: Occurrence) -> Occurrence:
        """Add an event or count it as a repetition; return the one that is kept."""
        key = (event.kind[0] + event.role.value, event.kind[1])
        kept = self.events.get(key)
        if kept is not None and kept.start > event.start:
            # A traceback is complete only after lines that are below its beginning.
            event.repeat(kept)
            self.events[key] = event
            return event
        if kept is not None:
            kept.repeat(event)
            return kept
        if len(self.events) < _MOST_EVENTS:
            self.events[key] = event
        return event

    def overcome(self, cause: Occurrence) -> None:
        """Make a cause a suspect, if it is of this episode."""
        for key, event in self.events.items():
            if event is cause:
                del self.events[key]
                event.role = SignatureRole.SUSPECT
                self.add(event)
                return

    @property
    def steps(self) -> list[Ending]:
        """The ends that schedulers report."""
        return [one for one in self.endings if one.by_scheduler]

    @property
    def ends(self) -> bool:
        """Return whether the end of a process is reported."""
        return bool(self.endings or self.of_role(SignatureRole.SUMMARY))

    @property
    def has_failed(self) -> bool:
        """Return whether a process ended, had a cause to, or lost another one."""
        return self.ends or bool(self.of_role(SignatureRole.CAUSE) or self.of_role(SignatureRole.CONSEQUENCE))

    def shows_end_from(self, number: int) -> bool:
        """Return whether an exception ended a process, or a consequence is shown, from line ``number`` on."""
        suffered = any(one.last >= number for one in self.of_role(SignatureRole.CONSEQUENCE))
        return suffered or any(one.is_proof for one in self.events.values())

    def of_role(self, role: SignatureRole) -> list[Occurrence]:
        """Return the events of a role, first in the log first."""
        return sorted((e for e in self.events.values() if e.role is role), key=lambda e: e.start)


class NodeEvents:
    """The events of one node (or pod) in one log, and other facts about it.

    ``finished_at`` is the last line in which the launcher reported success; ``is_open``: a launch began and
    reported no end. ``last_words`` is the line above the first report that a process ended.
    ``stop_requested_at`` is the first line in which the launcher asked the training to end, else 0.
    ``recorded`` is the cause that the launcher found, "" if its events do not say. ``quoted`` are the lines
    in which it repeats the verdict of another node. ``earlier_cause`` is the cause that ended the attempt
    before the last one.
    """

    def __init__(self, log: str, clock_offset_s: float) -> None:
        self.log = log
        self.clock_offset_s = clock_offset_s
        self.finished_at = 0
        self.is_open = False
        self.stop_requested_at = 0
        self.recorded = ""
        self.quoted: list[str] = []
        self.collectives = Collectives()
        self.facts: dict[str, str] = {}
        self.homes = Homes()
        self.lines_read = 0
        self.survived: list[Occurrence] = []
        self.earlier_cause: Occurrence | None = None
        self.first_error: FirstError | None = None
        self.last_words: FirstError | None = None
        self._episode = Episode()
        self._decisive = Episode()

    @property
    def places(self) -> list[Location]:
        """All places that its events, endings and tasks name."""
        shown = [where for event in all_events([self]) for where in event.wheres]
        return shown + [place for one in self.episode.endings for place in one.places]

    def leave_out_hosts(self) -> None:
        """Drop hosts whose name does not identify a machine."""
        for event in all_events([self]):
            event.where = _on_a_machine(event.where)
            event.wheres = {_on_a_machine(where) for where in event.wheres}
        episode = self.episode
        ends = episode.endings
        episode.endings = [replace(one, places=tuple(map(_on_a_machine, one.places))) for one in ends]
        if self.first_error is not None:
            self.first_error = replace(self.first_error, where=_on_a_machine(self.first_error.where))

    def add(self, event: Occurrence, parting_lines: int) -> Occurrence:
        """Add an event; it opens an episode of its own after ``parting_lines`` of ordinary output."""
        self.part(event.start, parting_lines)
        self._episode.last_line = max(self._episode.last_line, event.number)
        return self._episode.add(event)

    def end(self, ending: Ending, parting_lines: int) -> None:
        """Record how processes ended."""
        self.part(ending.line.number, parting_lines)
        self._episode.last_line = ending.line.number
        if len(self._episode.endings) < _MOST_EVENTS:
            self._episode.endings.append(ending)

    def err(self, error: FirstError, parting_lines: int) -> None:
        """Record a line that looks like an error; the first clear one counts."""
        self.part(error.number, parting_lines)
        self._episode.last_line = error.number
        if self.first_error is None or (error.clear and not self.first_error.clear):
            self.first_error = error

    def overcome(self, cause: Occurrence) -> None:
        """Make a cause a suspect, since the following lines show that its process survived it."""
        self._episode.overcome(cause)
        self._decisive.overcome(cause)
        if not self._decisive.of_role(SignatureRole.CAUSE):
            self._decisive = Episode()

    def record_survived(self, event: Occurrence) -> None:
        """Record an event as one that the training survived."""
        for episode in (self._episode, self._decisive):
            episode.events = {key: one for key, one in episode.events.items() if one is not event}
        if event.signature.role is SignatureRole.CAUSE:
            self.survived = [*self.survived, event][-_MOST_SURVIVED:]
        if not self._decisive.of_role(SignatureRole.CAUSE):
            self._decisive = Episode()

    def forget(self, until: int) -> None:
        """Drop everything up to a line."""
        for episode in (self._episode, self._decisive):
            episode.events = {key: one for key, one in episode.events.items() if one.last > until}
            episode.endings = [one for one in episode.endings if one.line.number > until]
        self.survived = [one for one in self.survived if one.last > until]
        if self.first_error is not None and self.first_error.number <= until:
            self.first_error = None
        if self.last_words is not None and self.last_words.number <= until:
            self.last_words = None

    def record_restart(self, until: int) -> None:
        """Record everything up to a line, from which on the training was restarted, as survived."""
        over = [one for one in self.episode.of_role(SignatureRole.CAUSE) if one.last <= until]
        self.forget(until)
        self.earlier_cause = min(over, key=lambda one: one.start, default=self.earlier_cause)

    def record_work(self, few_steps_at: int, last_step_at: int, until_s: float | None) -> None:
        """Record events above work as harmless; one step is enough for those that may be.

        An event after ``until_s``, the time of the last step, is later than it wherever its line is.
        """
        for event in list(self.episode.events.values()):
            harmless = event.doubtful or (event.role is SignatureRole.SUSPECT and event.raised is None)
            time_s = event.moment.time_s
            late = until_s is not None and time_s is not None and time_s > until_s
            last_word = until_s is None and reports_end(event.shown)
            if event.last < (last_step_at if harmless else few_steps_at) and not (late or last_word):
                self.record_survived(event)
        error = self.first_error
        over_at = few_steps_at if error is not None and error.clear else last_step_at
        if (
            error is not None
            and error.number < over_at
            and not (until_s is None and reports_end(error.shown))
        ):
            self.first_error = None

    def part(self, number: int, parting_lines: int) -> None:
        """Close the episode if there was enough ordinary output before line ``number``."""
        if not self._episode.last_line or number - self._episode.last_line <= parting_lines:
            return
        if self._episode.of_role(SignatureRole.CAUSE):
            self.survived = [*self.survived, *self._decisive.of_role(SignatureRole.CAUSE)][-_MOST_SURVIVED:]
            self._decisive = self._episode
        self._episode = Episode()
        self.first_error = self.last_words = None

    @property
    def finished(self) -> bool:
        """Return whether it ended in success after all its events."""
        last_line = max(self._episode.last_line, self._decisive.last_line)
        return self.finished_at > last_line and not self.is_open

    @property
    def lines_after(self) -> int:
        """How many lines of output follow the last event."""
        return self.lines_read - self.episode.last_line

    @property
    def episode(self) -> Episode:
        """The latest episode with a cause, else the latest of all."""
        if self._episode.of_role(SignatureRole.CAUSE) or not self._decisive.events:
            return self._episode
        return self._decisive


def _on_a_machine(where: Location) -> Location:
    return where if where.host is None or names_a_machine(where.host) else replace(where, host=None)


def all_events(nodes: Iterable[NodeEvents]) -> list[Occurrence]:
    """Return the events of all nodes' decisive episodes."""
    return [event for node_events in nodes for event in node_events.episode.events.values()]


def first_to_end(nodes: Iterable[NodeEvents]) -> int | None:
    """Return the rank whose end launchers saw first, by their clocks, which count whole seconds."""
    endings = [one for n in nodes for one in n.episode.endings if not one.by_scheduler]
    endings = [one for one in endings if one.where.rank is not None]
    roots = [one for one in endings if one.is_root]
    if all(one.time for one in roots):
        first = min((one.time for one in roots), default="")
        roots = [one for one in endings if one.time == first]
    ranks = {one.where.rank for one in roots}
    return ranks.pop() if len(ranks) == 1 else None
