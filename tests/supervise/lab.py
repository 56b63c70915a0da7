"""A supervisor in a real process, and waits that have a limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT_S = 20.0
ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("driver.py")


class Supervised:
    """A driver process. ``output`` is its stdout and stderr, merged, unless a test took them elsewhere."""

    def __init__(self, process: subprocess.Popen[bytes], outcome_path: Path, log_path: Path) -> None:
        self.process = process
        self.outcome_path = outcome_path
        self.log_path = log_path
        self.output = b""

    def finish(self) -> dict[str, Any]:
        """Wait for the end and return the outcome."""
        self.output, _ = self.process.communicate(timeout=LIMIT_S)
        outcome: dict[str, Any] = json.loads(self.outcome_path.read_text())
        assert self.process.returncode == outcome["exit_code"]
        return outcome

    def read_until(self, marker: bytes) -> bytes:
        """Read the output up to a marker."""
        assert self.process.stdout is not None
        seen = b""
        until = time.monotonic() + LIMIT_S
        while marker not in seen:
            assert time.monotonic() < until, seen
            chunk = os.read(self.process.stdout.fileno(), 65536)
            assert chunk, f"ended before {marker!r}: {seen!r}"
            seen += chunk
        return seen

    @property
    def log(self) -> str:
        return self.log_path.read_text()


Supervise = Callable[..., Supervised]


def python(code: str) -> tuple[str, ...]:
    """Return the argv of a Python one-off whose output is not buffered."""
    return (sys.executable, "-u", "-c", code)


def alive(pid: int) -> bool:
    """Tell whether a process runs: it exists and is not a zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Wait for a condition, and fail when it does not come true in time."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.01)
