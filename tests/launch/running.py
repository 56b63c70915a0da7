"""A launch of one node that runs until the test lets it end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from platform_launch import events
from platform_launch.events import Event
from tests.lab.waiting import LIMIT_S, until

ROOT = Path(__file__).resolve().parents[2]
# Names its steps, waits for the word, and names the last one.
TRAINING = """
for step in range(1, 8):
    print(f"Step {step}/10", flush=True)
input()
print("Step 10/10", flush=True)
"""


@dataclass
class RunningLaunch:
    """A launch, and where its events lie."""

    process: subprocess.Popen[str]
    logs: Path

    def events(self) -> list[Event]:
        return [said for path in self.logs.glob("*.events.jsonl") for said in events.read(path) or []]

    def event(self, event_id: str) -> Event:
        """Wait for an event."""

        def found() -> list[Event]:
            return [said for said in self.events() if said.id == event_id]

        return until(found, lambda: f"no {event_id}: {self.events()}")[0]

    def end(self) -> int:
        """Let the training take its last step, and return the launch's exit code."""
        self.process.communicate("\n", timeout=LIMIT_S)
        return self.process.returncode


@contextmanager
def launch(
    folder: Path, *options: str, variables: Mapping[str, str] | None = None
) -> Iterator[RunningLaunch]:
    """Start one; whatever is left of it at the end is killed."""
    script = folder / "training.py"
    script.write_text(TRAINING)
    command = [
        sys.executable,
        "-m",
        "platform_launch",
        "run",
        "--launcher",
        "python",
        "--script",
        str(script),
    ]
    process = subprocess.Popen(
        [*command, "--log-dir", str(folder / "logs"), *options],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT), **(variables or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=folder,
    )
    with process:
        try:
            yield RunningLaunch(process, folder / "logs")
        finally:
            process.kill()
