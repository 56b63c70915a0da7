"""The exit code of a node's processes, which accelerate's launcher and torchrun replace by 1.

torchrun's summary lists the codes of the ranks that failed. A script that knows more (the shipped example
exits with 66 if it cannot start, and with 143 if it is asked to stop) writes a JSON object,
``{"exit_code": 66, "reason": "…"}``, atomically to the file named in PLATFORM_LAUNCH_EXIT_FILE. The reason
becomes an event, which `why` quotes.

In a job of several nodes, a node may exit with another node's code (``job_exit_code``). The other functions
parse what torchrun's agent prints at its end about the processes it started.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from platform_launch.errors import NodesAbsentError, UnfitNodeError
from platform_launch.events import Event, event
from platform_launch.supervise import Command, Outcome

if TYPE_CHECKING:
    from platform_launch.rendezvous.ending import RunOutcome

VARIABLE = "PLATFORM_LAUNCH_EXIT_FILE"
_LARGEST = 64 * 1024
_LONGEST_REASON = 1000

# Printed by torchrun's agent before it stops the remaining ranks: month and day, time, process.
_CLOSING = re.compile(r"(?:W(\d{4} \d\d:\d\d:\d\d\.\d{1,6}) [^\n]*)?Sending process (\d{1,9}) closing signal")

# From the summary that torchrun, also inside accelerate, prints last: one line per rank that failed.
_SUMMARY = b"ChildFailedError"
_EXIT_CODE = re.compile(rb"^ *exitcode {1,4}: (-?\d{1,3}) \(pid: \d+\)", re.MULTILINE)


class ExitFile:
    """The file in which a node's processes report their exit code; ``path`` is None if there can be none.

    ``reported`` is the event with the reason that the last attempt gave, if any.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.reported: Event | None = None

    @property
    def folder(self) -> Path | None:
        """The private folder with the file."""
        return self._path.parent if self._path is not None else None

    def passed_to(self, command: Command) -> Command:
        """Return the command with the file's path in its environment."""
        if self._path is None:
            return command
        return replace(command, env={**command.env, VARIABLE: str(self._path)})

    def clear(self) -> None:
        """Remove what an earlier attempt wrote."""
        self.reported = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def corrected(self, outcome: Outcome, report: Callable[[Event], None]) -> Outcome:
        """Return the outcome with the job's own exit code instead of a launcher's 1; report its reason."""
        if outcome.exit_code == 0 or outcome.stopped_by is not None:
            return outcome
        code, reason = self._read()
        own = code if code is not None else agreed_exit_code(outcome.tail)
        if outcome.exit_code == 1 and own is not None:
            outcome = replace(outcome, exit_code=own)
        if reason and code == outcome.exit_code:
            self.reported = event("training-reason", exit_code=code, reason=reason)
            report(self.reported)
        return outcome

    def _read(self) -> tuple[int | None, str]:
        """Return the exit code (None if the file has none) and the reason."""
        if self._path is None:
            return None, ""
        try:
            with self._path.open("rb") as file:
                content = json.loads(file.read(_LARGEST))
            code, reason = content["exit_code"], content.get("reason")
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None, ""
        if not isinstance(code, int) or isinstance(code, bool) or not 0 < code < 256:
            return None, ""
        return code, reason.strip()[:_LONGEST_REASON] if isinstance(reason, str) else ""


@contextmanager
def exit_file() -> Iterator[ExitFile]:
    """Provide a file in a private folder that is removed with the launch."""
    try:
        folder = TemporaryDirectory(prefix="platform_launch_exit_", ignore_cleanup_errors=True)
    except OSError:  # optional: it must not stop a launch
        yield ExitFile(None)
        return
    with folder as name:
        yield ExitFile(Path(name, "exit.json"))


def job_exit_code(outcome: Outcome, agreed: RunOutcome, node_rank: int) -> int:
    """Return the exit code of a node: its own, that of the node that failed first, or that of a bad node."""
    finished = outcome.exit_code == 0 and outcome.stopped_by is None
    if finished or agreed.exit_code == 0:
        return outcome.exit_code
    bad = [node.node_rank for node in agreed.unwell if node.bad]
    if node_rank in bad:
        return UnfitNodeError.exit_code
    return NodesAbsentError.exit_code if bad else agreed.exit_code


def agreed_exit_code(tail: bytes) -> int | None:
    """Return the exit code of all failed ranks of this node, from the summary in torchrun's output.

    torchrun itself returns 1 whatever its ranks returned. None if the codes differ, if a signal killed a
    rank, or if there is no summary.
    """
    summary = tail[tail.rfind(_SUMMARY) :] if _SUMMARY in tail else b""
    codes = {int(code) for code in _EXIT_CODE.findall(summary)}
    (code,) = codes if len(codes) == 1 else (None,)
    return code if code is not None and 0 < code < 256 else None


def failed_local_ranks(tail: bytes) -> frozenset[int]:
    """Return the local ranks that torchrun's agent reports as failed at the end of its output."""
    from platform_launch.why.reading.endings import TORCHRUN_LINE

    found = TORCHRUN_LINE.finditer(tail.decode(errors="replace"))
    return frozenset(int(rank) for line in found if (rank := line[2]))


def closing_signals(tail: bytes, now: datetime) -> dict[int, float]:
    """Return the processes that torchrun's agent reports stopping, and when (time.time(); 0: unknown)."""
    found = _CLOSING.findall(tail.decode(errors="replace"))
    return {int(pid): _moment(text, now) for text, pid in found}


def _moment(text: str, now: datetime) -> float:
    """Parse a time without a year: the latest such time that is not in the future."""
    try:
        moment = datetime.strptime(f"{now.year} {text}", "%Y %m%d %H:%M:%S.%f")
        return (moment if moment <= now else moment.replace(year=now.year - 1)).timestamp()
    except ValueError:
        return 0.0


def left_a_signal_traceback(tail: bytes) -> bool:
    """Return whether torchrun's agent answered a signal with a traceback, which looks like a failure."""
    return b"multiprocessing.api.SignalException: " in tail


def left_an_exit_barrier(tail: bytes) -> bool:
    """Return whether torchrun's agent ends with an error because the store was closed before it.

    All workers had finished by then; the agent that serves the store just did not wait for the others.
    """
    return b"Error waiting on exit barrier" in tail
