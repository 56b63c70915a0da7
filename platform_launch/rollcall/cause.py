"""How a node's training ended, and which of several ends came first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_LINES = 5
_LONGEST_LINE = 240

# What a process says whose partner is gone. Nothing earlier found, they stand as they are.
_CONSEQUENCE = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken pipe|recvBytes|remote process exited"
    r"|watchdog|heartbeat|socket timeout|SIGTERM|connectFullMesh|store->get",
    re.IGNORECASE,
)
_EXCEPTION = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Failure|Iteration)\b(?::|$)")
# What stands before a line: our node, torch's rank.
_LABELS = re.compile(r"^(?:\[(?:node \d+|rank\d+)\]:? ?)+")
# The launcher's own lines are in the log as well; this is its last one before the training.
_BEFORE_TRAINING = re.compile(r"\A.*\[SUCCESS\] roll call: [^\n]*", re.DOTALL)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Report:
    """How the training of one node ended.

    ``stopped_by`` is what asked it to end, None when nothing did. ``ended_at_s`` is the time by the node's
    own clock until node 0 corrects it to its own. ``words`` are the lines that say best why.
    """

    node_rank: int
    place: str
    exit_code: int
    stopped_by: str | None
    ended_at_s: float
    words: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether it ended with an error of its own."""
        return self.exit_code != 0 and self.stopped_by is None

    @property
    def blames_others(self) -> bool:
        """Whether its words only speak of a partner that is gone."""
        evidence = [line for line in self.words if not line.startswith(("means:", "fix:"))]
        return _CONSEQUENCE.search(" ".join(evidence)) is not None


def first_cause(reports: Sequence[Report]) -> Report | None:
    """Return the failure that the others follow from, None when no node failed by itself.

    When a process dies, its partners fail within milliseconds: so one that speaks of a lost connection is
    believed only where nobody says anything better, and the earliest wins.
    """
    failures = sorted((report for report in reports if report.failed), key=lambda report: report.ended_at_s)
    own = [report for report in failures if not report.blames_others]
    return next(iter(own or failures), None)


def last_words(log: str) -> tuple[str, ...]:
    """Return the lines at the end of a training's output that say best why it ended, five at most.

    The first traceback is where it began: what follows are other ranks and torchrun's own report.
    """
    log = _BEFORE_TRAINING.sub("", log)
    lines = [_LABELS.sub("", _ANSI.sub("", line)).rstrip() for line in log.replace("\r", "\n").splitlines()]
    lines = [line[:_LONGEST_LINE] for line in lines if line.strip(" ^~")]
    for start, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            for end in range(start + 1, len(lines)):
                if not lines[end].startswith(" ") and _EXCEPTION.match(lines[end]):
                    return tuple(lines[max(start + 1, end - 2) : end + 1])
    return tuple(lines[-_MOST_LINES:])
