"""How an attempt ended on this node, as reported to the other nodes, with the cause its output shows.

The output is read from memory: a log may be missing, lost, or on a hanging disk.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from platform_launch.console import log_line
from platform_launch.console.languages import translate
from platform_launch.errors import HangError
from platform_launch.events import Event
from platform_launch.hardware.cgroup import OomKills
from platform_launch.health.finding import NodeHealth
from platform_launch.launch.conclusion import end_event, explain_end
from platform_launch.observe.steps import highest_step
from platform_launch.rendezvous.ending import Cause, EndKind, NodeEnding
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.first_failure import last_words
from platform_launch.rendezvous.restarts import FailedRun, is_young
from platform_launch.supervise import Outcome

if TYPE_CHECKING:
    from platform_launch.observe.monitor import HangReport

_TAIL_BYTES = 256 * 1024
# Enough for each fact of a verdict, including the advice on retrying.
_MOST_CAUSE_LINES = 10
# Causes that never disappear by themselves. After others a restart may succeed: out of memory, unreadable
# data, and most exceptions of a script.
_LASTING = frozenset(
    {
        "batch_arithmetic",
        "command_missing",
        "config_invalid",
        "deepspeed_config",
        "extension_abi",
        "library_missing",
        "missing_module",
        "module_shadowed",
        "no_kernel_image",
        "numpy_abi",
        "script_missing",
        "syntax_error",
        "wrong_arguments",
    }
)
# Lines of a hang that the end of the job repeats.
_MOST_HANG_LINES = 8
_LONGEST_LINE = 480
# As JSON, where a character may take twelve bytes: an ending sent to other nodes is limited to 64 KiB.
_LONGEST_LINE_BYTES = 2000
# The system's messages for a port in use, and how a line names the port.
_PORT_IN_USE = re.compile(rb"EADDRINUSE|[Aa]ddress already in use")
_PORT = re.compile(rb"(?:\bport\b\W{0,3}|\('[^']{0,255}', )(\d{2,5})\b")


def of_node(
    node: Fingerprint, kind: EndKind, exit_code: int, cause: Cause | None = None, stopped_by: str = ""
) -> NodeEnding:
    """Return the ending of a node."""
    return NodeEnding(kind, node.node_rank, node.place, exit_code, cause, stopped_by)


def of_training(
    node: Fingerprint, outcome: Outcome, output: TrainingOutput, health: NodeHealth | None
) -> NodeEnding:
    """Return the ending of processes that were stopped, failed or finished, with the cause."""
    kind = EndKind.FINISHED
    if outcome.stopped_by is not None:
        kind = EndKind.STOPPED
    elif outcome.exit_code:
        kind = EndKind.FAILED
    ended = end_event(outcome, outcome.exit_code) if kind is EndKind.FAILED else None
    cause = output.why(ended) if outcome.exit_code else None
    if cause is not None and not is_young(FailedRun(highest_step(output.text()), outcome.duration_s)):
        cause = replace(cause, retry="")  # it ran well for a long time, so a restart makes progress
    ending = of_node(node, kind, outcome.exit_code, cause, outcome.stopped_by or "")
    return replace(ending, health=health)


def of_hang(node: Fingerprint, report: HangReport) -> NodeEnding:
    """Return the ending of an attempt that hangs, at the rank that blocks the others."""
    cause = Cause("hang", (), tuple(map(translate, report.finding.lines()[:_MOST_HANG_LINES])))
    ending = replace(of_node(node, EndKind.HUNG, HangError.exit_code, cause), silent_s=report.still_s)
    culprit = next(iter(report.finding.culprits), None)
    if culprit is not None and culprit.node_rank is not None:
        ending = replace(ending, node_rank=culprit.node_rank, host=culprit.host)
    return ending


class TrainingOutput:
    """The end of the processes' output. ``tail()`` returns it as it is in the log at ``log``.

    ``reported()`` returns the reason that the job itself gave for its end, None if it gave none.
    """

    def __init__(
        self, log: Path, tail: Callable[[], bytes], reported: Callable[[], Event | None] = lambda: None
    ) -> None:
        self._log = log
        self._tail = tail
        self._reported = reported
        self._lines_before: int | None = 0  # None: too many to count
        self._oom_kills = OomKills()

    def begin(self) -> None:
        """Record the start of the processes; the log already has lines of earlier attempts."""
        self._oom_kills = OomKills()
        try:
            with self._log.open("rb") as file:
                before = file.read(_TAIL_BYTES)
                self._lines_before = before.count(b"\n") if len(before) < _TAIL_BYTES else None
        except OSError:
            self._lines_before = 0

    def text(self) -> str:
        """Return the end of the output."""
        return self._tail().decode(errors="replace")

    def why(self, ended: Event | None = None) -> Cause | None:
        """Return what the other nodes should repeat: the cause if one is found, otherwise the last lines.

        ``ended`` is how the processes ended, if that may be the cause of what their output does not explain.
        """
        from platform_launch.why.explaining import explain
        from platform_launch.why.sources import LogSource

        text, name = self.text(), self._log.name
        if len(text) < _TAIL_BYTES and self._lines_before is not None:
            text = "\n" * self._lines_before + text
        else:  # line numbers would mislead
            name = f"the end of {name}"
        if reason := self._reported():
            text = f"{text.rstrip()}\n{log_line(reason)}\n"
        verdict = explain([LogSource(name, io.BytesIO(text.encode()))], self._oom_kills.so_far())
        if verdict.kind in ("cause", "suspect", "unknown"):
            first = (verdict.first_error,) if verdict.first_error else ()
            evidence = (verdict.title, *(found.text for found in verdict.evidence or first))
            lasting = verdict.kind == "cause" and (verdict.retry != "no" or verdict.cause in _LASTING)
            retry = (verdict.retry or "") if lasting else ""
            return Cause(verdict.cause or "", _short(evidence), _short(verdict.lines(brief=True)), retry)
        words = last_words(text)
        if verdict.kind == "nothing" and ended is not None:
            verdict = explain_end(ended, self._oom_kills.so_far())
            if verdict.kind == "cause":
                return Cause(verdict.cause or "", words, _short(verdict.lines(brief=True)))
        return Cause("", words, words) if words else None


def wants_port(tail: bytes, port: int) -> bool:
    """Return whether the end of the output reports a port in use: this one, or one without a number."""
    lines = [line for line in tail.splitlines() if _PORT_IN_USE.search(line)]
    named = {int(number) for line in lines for number in _PORT.findall(line)}
    return bool(lines) and (not named or port in named)


def _short(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(_cut(line) for line in lines if line)[:_MOST_CAUSE_LINES]


def _cut(line: str) -> str:
    line = line[:_LONGEST_LINE]
    return line if len(json.dumps(line)) <= _LONGEST_LINE_BYTES else line[: _LONGEST_LINE_BYTES // 12]
