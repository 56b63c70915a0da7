"""How processes ended, as their launchers report it: this one by an event, others by what they print.

A summary says that a process ended, by its own clock and for one node; why is said elsewhere.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from platform_launch.events import Event
from platform_launch.why.lines.line import NOWHERE, Line, Location
from platform_launch.why.lines.literals import PatternSet, branches, index_of

# Exit code and local rank, which is missing where several processes tear the line.
TORCHRUN_LINE = re.compile(
    r"failed \(exitcode: (-?\d+)\)(?: (?:for binary \S.{0,300}? with )?local_rank: (\d+)\b)?"
)
_ROOT = "Root Cause (first observed failure)"
_BLOCK_OPENS = re.compile(rf"ChildFailedError|^Failures:|^{re.escape(_ROOT)}")
_CUT_BLOCK = re.compile(r"\s*(?:(?:host|rank) {6}: |time {6}: \d{4}-\d\d-\d\d_)")
_BLOCK_FIELD = re.compile(r"\s*(time|host|rank|exitcode)\s*: (.*)")
_RANKS = re.compile(r"(\d+) \(local_rank: (\d+)\)")
_LONGEST_BLOCK_LINES = 2000
# Events that say how the training of the node ended that says them.
_OWN = frozenset({"training-failed", "training-killed"})
_SAID_BY_OTHERS = (
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
    # Of a job's script, where only a signal gives such a code.
    r"^(?!=  )\W{0,9}(?:[\w.]{1,20} ){0,3}(?i:exit[ _]?(?:code|status)) ?[:=] ?(?P<code>13[24-79]|143)\b",
    # Of text-generation-inference, whose shards are ranks.
    r"\bsignaled to shutdown with signal (?P<signal>[1-9]\d*)(?: rank=(?P<rank>\d{1,7}))?",
    r"(?:died with <Signals\.\w+:|\bWTERMSIG) (?P<signal>[1-9]\d*)\b",
)
_OTHERS = PatternSet(index_of(branch for source in _SAID_BY_OTHERS for branch in branches(source)))
# SkyPilot's, one code a node; what it ended itself then has 137.
_OF_NODES = re.compile(
    r"Job \d+(?:'s setup)? failed with return code list: \[(?P<codes>-?\d+(?:, ?-?\d+)*)\]"
)
_CLEANED_UP = 137
# What launchers do to those that are left.
ENDED_ALONG = (-15, 143)
# Exit codes from here on are those of signals.
FIRST_OF_SIGNALS = 128
_SAID_RANK = re.compile(r"\b[Rr]ank:? (\d{1,7})\b")


@dataclass(frozen=True)
class Ending:
    """A process that ended with an error. A negative ``exit_code`` is a signal.

    ``is_root`` is torchrun's opinion: the first one that failed on this node, at ``time`` by its clock.
    """

    exit_code: int
    where: Location
    line: Line
    is_root: bool = True
    time: str = ""


class SummaryBlock:
    """torchrun's summary of one node, line by line; :attr:`done` at its end."""

    def __init__(self, opening: str) -> None:
        self.done = False
        self._is_root = _ROOT in opening
        self._fields: dict[str, str] = {}
        self._lines_left = _LONGEST_BLOCK_LINES

    def read(self, line: Line) -> Ending | None:
        """Return the ending that a line completes, None if it says none."""
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
        said = Location(host=self._fields.get("host"), rank=rank, local_rank=local_rank)
        return Ending(
            int(code[0]), said.filled(line.where), line, self._is_root, self._fields.get("time", "").strip()
        )


def ending_of(said: Event, line: Line) -> Ending | None:
    """Return how this node's training ended where an event of this launcher says it, None where none does."""
    if said.id not in _OWN:
        return None
    code = str(said.fields.get("exit_code", ""))
    name = str(said.fields.get("signal", ""))
    if said.id == "training-killed" and name in signal.Signals.__members__:
        return Ending(-signal.Signals[name], line.where, line)
    return Ending(int(code), line.where, line) if code.isascii() and code.isdigit() else None


def opens_block(text: str) -> bool:
    """Tell whether a line opens torchrun's summary, or its part about the first failure."""
    return _BLOCK_OPENS.search(text) is not None


def continues_block(text: str) -> bool:
    """Tell whether a line is of torchrun's summary, as where the head of it was cut off."""
    return _CUT_BLOCK.match(text) is not None


def ending_in(line: Line) -> Ending | None:
    """Return the ending that a line reports by itself, None if it reports none."""
    if found := TORCHRUN_LINE.search(line.text):
        named = Location(local_rank=int(found[2])) if found[2] else NOWHERE
        return Ending(int(found[1]), line.where.filled(named), line)
    if found := _OF_NODES.search(line.text):
        codes = [int(code) for code in found["codes"].split(",")]
        failed = [node for node, code in enumerate(codes) if code not in (0, _CLEANED_UP)]
        if len(failed) == 1 or not any(codes[1:]):
            node = failed[0] if failed else 0
            return Ending(codes[node], Location(node=node).filled(line.where), line)
    for index in _OTHERS.candidates(line.text):
        if found := _OTHERS.patterns[index].search(line.text):
            groups = found.groupdict()
            rank = int(groups["rank"]) if groups.get("rank") else None
            said = Location(pod=groups.get("pod"), rank=rank)
            return Ending(_code(groups), line.where.filled(said).filled(_named(line.text)), line)
    return None


def _named(text: str) -> Location:
    """Return the rank that a line names.

    Not the one in a command's --local_rank: launchers print the command that they started last, not the one
    that failed.
    """
    rank = _SAID_RANK.search(text)
    return Location(rank=int(rank[1])) if rank else NOWHERE


def _code(groups: dict[str, str]) -> int:
    return -int(groups["signal"]) if groups.get("signal") else int(groups["code"])
