"""A supervisor in a real process, and waits that have a limit."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab.waiting import LIMIT_S, until

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
        output, seen = self.process.stdout.fileno(), b""

        def there() -> bool:
            nonlocal seen
            if select.select([output], [], [], 1.0)[0]:
                chunk = os.read(output, 65536)
                assert chunk, f"ended before {marker!r}: {seen!r}"
                seen += chunk
            return marker in seen

        until(there, lambda: f"{marker!r} does not come: {seen!r}", pause_s=0)
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
