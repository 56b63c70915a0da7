"""What torchrun's agent says at the end of a training's output of the processes that it started."""

from __future__ import annotations

import re
from datetime import datetime

# Of torchrun's agent, before it ends the ranks that still run: month and day, time, process.
_CLOSING = re.compile(r"(?:W(\d{4} \d\d:\d\d:\d\d\.\d{1,6}) [^\n]*)?Sending process (\d{1,9}) closing signal")

# Of the summary that torchrun, also inside accelerate, prints last: one line for each rank that failed.
_SUMMARY = b"ChildFailedError"
_EXIT_CODE = re.compile(rb"^ *exitcode {1,4}: (-?\d{1,3}) \(pid: \d+\)", re.MULTILINE)


def agreed_exit_code(tail: bytes) -> int | None:
    """Return the exit code with which all failed ranks of this node ended, at the end of torchrun's output.

    torchrun itself returns 1 whatever its ranks returned. None if the ranks differ, if a signal ended one,
    and if there is no summary.
    """
    summary = tail[tail.rfind(_SUMMARY) :] if _SUMMARY in tail else b""
    codes = {int(code) for code in _EXIT_CODE.findall(summary)}
    (code,) = codes if len(codes) == 1 else (None,)
    return code if code is not None and 0 < code < 256 else None


def failed_local_ranks(tail: bytes) -> frozenset[int]:
    """Return the local ranks that torchrun's agent says have failed, at the end of its output."""
    from platform_launch.why.reading.endings import TORCHRUN_LINE

    found = TORCHRUN_LINE.finditer(tail.decode(errors="replace"))
    return frozenset(int(rank) for line in found if (rank := line[2]))


def closing_signals(tail: bytes, now: datetime) -> dict[int, float]:
    """Return the processes that torchrun's agent says it ends, and when (time.time(); 0: not known)."""
    found = _CLOSING.findall(tail.decode(errors="replace"))
    return {int(pid): _moment(text, now) for text, pid in found}


def _moment(text: str, now: datetime) -> float:
    """Read a time without a year, which is the last one that it can be."""
    try:
        moment = datetime.strptime(f"{now.year} {text}", "%Y %m%d %H:%M:%S.%f")
        return (moment if moment <= now else moment.replace(year=now.year - 1)).timestamp()
    except ValueError:
        return 0.0


def left_a_signal_traceback(tail: bytes) -> bool:
    """Tell whether torchrun's agent answered a signal with a traceback, which looks like a failure."""
    return b"multiprocessing.api.SignalException: " in tail


def left_an_exit_barrier(tail: bytes) -> bool:
    """Tell whether torchrun's agent complains, at the end of its output, of a store that was gone before it.

    All workers had finished by then; the agent that holds the store just did not wait for the others.
    """
    return b"Error waiting on exit barrier" in tail
